"""Bounds how many requests with an unfinished body each peer may have, and for how long: a peer
that announces bodies and sends none must not use up everybody's connections."""

from typing import Final

from bursar.clock import Clock
from bursar.errors import ApiError, ErrorCode
from bursar.http.exchange import Exchange
from bursar.http.peer import Proxies

# How long a request beyond the bound may take to send its first byte. An honest burst of requests
# has done so by then; a silent peer has not.
CROWDED_SECONDS: Final = 1.0
_BODY_SECONDS: Final = 30


class Unfinished:
    def __init__(self, most: int, proxies: Proxies, clock: Clock) -> None:
        self._most = most
        self._proxies = proxies
        self._clock = clock
        self._count: dict[str, int] = {}
        # Since when, oldest first.
        self._watched: dict[Exchange, tuple[str, int]] = {}

    def watch(self, exchange: Exchange) -> bool:
        """Counts it until its body is complete or `forget` is called, which the caller must do
        when the request is over. Gives whether its peer has too many without it."""
        peer = exchange.peer
        count = self._count.get(peer, 0)
        self._count[peer] = count + 1
        self._watched[exchange] = peer, self._clock.monotonic_ns()
        exchange.at_the_end = self.forget
        return count >= self._most and not self._proxies.is_one(peer)

    def forget(self, exchange: Exchange) -> None:
        watched = self._watched.pop(exchange, None)
        if watched is None:
            return
        peer, _ = watched
        if self._count[peer] > 1:
            self._count[peer] -= 1
        else:
            del self._count[peer]

    def end_late_ones(self) -> None:
        """Gives up on bodies that take too long."""
        latest = self._clock.monotonic_ns() - int(_BODY_SECONDS * 1e9)
        late = [exchange for exchange, (_, since) in self._watched.items() if since <= latest]
        for exchange in late:
            self.forget(exchange)
            exchange.fail(_late)

    def drop_oldest(self) -> bool:
        """Closes the connection that has waited longest for a body; False when none does."""
        for exchange in self._watched:
            self.forget(exchange)
            exchange.drop()
            return True
        return False


def _late() -> ApiError:
    return ApiError(
        ErrorCode.VALIDATION_ERROR, f"The body did not arrive within {_BODY_SECONDS} s."
    )
