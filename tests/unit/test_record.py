"""Goal: the models of the client are what a frozen dataclass is, though none of its code is."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import Any

import pytest

from bursar.client.record import record


@record
class Coin:
    """A coin."""

    face: str
    secret: str = field(repr=False)
    year: int | None = None


@record
class Medal(Coin):
    """A coin that was won."""

    winner: str


def test_it_is_a_frozen_dataclass():
    coin = Coin(face="sun", secret="s3cret")
    assert repr(coin) == "Coin(face='sun', year=None)"
    assert asdict(coin) == {"face": "sun", "secret": "s3cret", "year": None}
    assert replace(coin, year=1999) == Coin(face="sun", secret="s3cret", year=1999) != coin
    assert hash(coin) == hash(Coin(face="sun", secret="s3cret"))
    medal = Medal(face="sun", secret="s3cret", winner="Ada")
    assert medal.winner == "Ada"
    assert coin != medal
    assert coin != "sun"
    for again in (copy.deepcopy(coin), pickle.loads(pickle.dumps(coin))):
        assert again == coin
    changed: Any = coin
    with pytest.raises(FrozenInstanceError):
        changed.face = "moon"
    with pytest.raises(FrozenInstanceError):
        del changed.face
    assert not hasattr(coin, "__dict__")


@pytest.mark.parametrize("given", [{"face": "sun"}, {"face": "a", "secret": "b", "colour": "red"}])
def test_fields_must_fit(given: dict[str, Any]):
    @dataclass(frozen=True, kw_only=True)
    class Plain:
        face: str
        secret: str
        year: int | None = None

    for kind in (Coin, Plain):
        with pytest.raises(TypeError):
            kind(**given)
