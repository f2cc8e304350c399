"""The decorator of the models: a frozen dataclass whose import is cheap. `dataclass` writes and
compiles the methods of each class, which is most of what importing the client would cost; here they
are written once, for all."""

from collections.abc import Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(kind)
    made.__init__ = _init
    made.__repr__ = _repr
    made.__eq__ = _eq
    made.__hash__ = _hash
    made.__setattr__ = _setattr
    made.__delattr__ = _delattr
    made.__setstate__ = _setstate
    return made


def _init(self: Any, **given: Any) -> None:
    for one in fields(self):
        value = given.pop(one.name, one.default)
        if value is MISSING:
            raise TypeError(f"{type(self).__qualname__}() needs {one.name}")
        object.__setattr__(self, one.name, value)
    if given:
        raise TypeError(f"{type(self).__qualname__}() has no {', '.join(given)}")


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _setattr(self: Any, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _setstate(self: Any, state: tuple[None, Mapping[str, Any]]) -> None:
    """For copies and pickles, which would assign."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


def _values(model: Any) -> tuple[Any, ...]:
    return tuple(getattr(model, one.name) for one in fields(model))
