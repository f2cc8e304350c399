"""The few questions that a seller has for a Solana node."""

from base64 import b64encode
from typing import Any, Final

import aiohttp

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)


class NodeRefused(Exception):
    """The node answered with an error; `reason` is the transaction's own, if it has one."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", "no reason given"))
        data: dict[str, Any] = error.get("data") or {}
        self.reason: Any = data.get("err")


class Node:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(self, method: str, *params: Any) -> Any:
        """Raises NodeRefused, or aiohttp's errors when there is no answer."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self._session.post(self._url, json=body, timeout=_TIMEOUT) as response:
            answer: dict[str, Any] = await response.json()
        if "error" in answer:
            raise NodeRefused(answer["error"])
        return answer["result"]

    async def send(self, transaction: bytes) -> str:
        """The signature of a transaction that the node took."""
        options = {"encoding": "base64", "preflightCommitment": "confirmed"}
        return await self.call("sendTransaction", b64encode(transaction).decode(), options)

    async def status(self, signature: str) -> dict[str, Any] | None:
        """What became of a transaction, once it is on the chain."""
        found = await self.call(
            "getSignatureStatuses", [signature], {"searchTransactionHistory": True}
        )
        return found["value"][0]
