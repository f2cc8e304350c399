"""Header values that strangers send, over a real connection to the real service."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.wire import Connection, Cut
from tests.support import Service, new_account

NAMES = ("Idempotency-Key", "Prefer", "X-Request-Id", "Content-Type", "Authorization", "Accept")
# What HTTP lets through a header: neither line ends nor NUL, which the server itself refuses.
VALUES = st.one_of(
    st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=60),
    st.sampled_from(["wait=", "wait=-1", "wait=1e9", "wait=0", "a, wait=0", "wait=0;x"]),
    st.sampled_from(["Bearer", "Bearer  ", "bearer x", "Basic eDp5", "Bearer " + "a" * 5_000]),
    st.sampled_from(["application/json; charset=utf-16", "application/json;", "a" * 4_000, "*/*"]),
)  # fmt: skip
EXPECTED = {200, 400, 401, 404, 409, 415, 422, 431}


class Raw(Connection):
    """Sends headers as they are."""

    async def send(self, headers: list[tuple[str, str]]) -> int:
        lines = "".join(f"\r\n{name}: {value}" for name, value in headers)
        return (
            await self.request("POST", f"/v1/spend/preview HTTP/1.1{lines}\r\nX-Rest:", {})
        ).status


@pytest.fixture(scope="module")
async def key(service: Service) -> str:
    return await service.key(account=new_account())


@given(headers=st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_header_makes_a_5xx(service: Service, key: str, headers: list[tuple[str, str]]):
    """Goal: any value of any header that is read is taken, ignored or refused."""
    connection: Any = Raw(service.url, key)
    try:
        assert await connection.send(headers) in EXPECTED
    except Cut:
        pass  # not HTTP any more, and the server says so by hanging up
    finally:
        connection.close()
