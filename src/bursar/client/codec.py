"""JSON to models and back: one reader per type, made once from the type itself."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from bursar.clock import iso

T = TypeVar("T")
Reader = Callable[[Any], Any]

Amount = Decimal | str
"""Money, exactly. No float, which is not exact; no int, which might be meant as cents."""
When = datetime | date | str
"""A moment, a whole UTC day, or either as ISO-8601 text."""

UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError)


def read(kind: type[T], value: Any) -> T:
    """Makes the model from its JSON. Raises one of UNREADABLE if the JSON does not fit."""
    return cast("T", _reader(kind)(value))


def write(model: Any) -> Any:
    """The JSON that `read` would read; an amount keeps its number of decimal places."""
    if is_dataclass(model):
        return {_camel(field.name): write(getattr(model, field.name)) for field in fields(model)}
    if isinstance(model, Decimal):
        return format(model, "f")
    if isinstance(model, datetime):
        return iso(model)
    if isinstance(model, dict):
        named = cast("dict[str, Any]", model)
        return {name: write(item) for name, item in named.items()}
    if isinstance(model, tuple):
        return [write(item) for item in cast("tuple[Any, ...]", model)]
    return model


def amount_text(amount: Amount) -> str:
    """The amount as the API takes it. The service refuses text that is not an amount."""
    if isinstance(amount, str):
        return amount
    # Checked at run time, because callers without a type checker may pass anything.
    if not isinstance(amount, Decimal):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"Money is a Decimal or a string such as '12.50', not {type(amount).__name__}:"
            " a float is not exact, and an int might be meant as cents."
        )
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def when_text(moment: When) -> str:
    if isinstance(moment, str):
        return moment
    if isinstance(moment, datetime) and moment.tzinfo is None:
        raise ValueError("A datetime must have a time zone, e.g. datetime.now(UTC).")
    return moment.isoformat()


# Readers ------------------------------------------------------------------------------------------


@cache
def _reader(kind: Any) -> Reader:
    if is_dataclass(kind):
        return _model_reader(cast("type[Any]", kind))
    if kind is Decimal:
        return _decimal
    if kind is datetime:
        return datetime.fromisoformat
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType and NoneType in arguments:
        inner = _reader(next(a for a in arguments if a is not NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(item(one) for one in value)
    if origin is Mapping and is_dataclass(arguments[1]):
        of_name = _reader(arguments[1])
        return lambda value: {name: of_name(one) for name, one in value.items()}
    # Strings, numbers, booleans and metadata are taken from JSON as they are. So a new value of an
    # enumeration passes, as a new field does.
    return _as_it_is


def _model_reader(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    # A field with a default may be left out.
    rows = [
        (f.name, _camel(f.name), _reader(hints[f.name]), f.default is MISSING) for f in fields(kind)
    ]

    def read_model(value: Mapping[str, Any]) -> Any:
        return kind(
            **{
                name: reader(value[key])
                for name, key, reader, required in rows
                if required or key in value
            }
        )

    return read_model


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, str):
        raise TypeError("an amount that is not a string")
    return Decimal(value)


def _as_it_is(value: Any) -> Any:
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
