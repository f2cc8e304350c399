"""Switches that make the node misbehave on purpose, so that clients can be tested against it.

Off unless the node was started with `--faults`, and set only from the same machine. All chance
comes from one seeded generator: the same seed and the same requests give the same faults.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from bursar_localnet.chain import Chain
from bursar_localnet.envelope import Body
from bursar_localnet.params import invalid
from bursar_localnet.slots import MAX_BLOCKHASH_AGE, Lag


class Dropped(Exception):
    """Close the connection without an answer."""


class HttpFault(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Rule(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """One kind of misbehaviour. `methods` empty means every method; `count` is times left."""

    action: Literal["drop", "delay", "duplicate", "fail", "lie"]
    methods: list[str] = []
    # Whether to act before the request is handled (`drop` then keeps it from happening) or after
    # (only its answer is affected).
    at: Literal["request", "answer"] = "answer"
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0
    code: int = -32005
    message: str = "Node is unhealthy"
    http_status: int | None = None
    claim: Literal["absent", "failed", "landed"] = "absent"


class LagSwitch(msgspec.Struct, forbid_unknown_fields=True):
    confirmed: Annotated[int, msgspec.Meta(ge=0)] = 0
    finalized: Annotated[int, msgspec.Meta(ge=0)] = 0


class Switches(msgspec.Struct, forbid_unknown_fields=True):
    seed: int = 0
    rules: list[Rule] = []
    lag: LagSwitch | None = None


class Faults:
    def __init__(self, chain: Chain, lag: Lag) -> None:
        self._chain = chain
        self._usual_lag = lag
        self._switches = Switches()
        self._random = random.Random(0)  # noqa: S311  repeatable on purpose, never a secret
        self._struck: Counter[str] = Counter()

    def set(self, switches: Any) -> Body:
        """Replaces all switches; `{}` puts everything back to normal."""
        try:
            self._switches = msgspec.convert(switches, Switches)
        except msgspec.ValidationError as problem:
            raise invalid(f"Invalid params: {problem}.") from None
        self._random.seed(self._switches.seed)
        self._struck.clear()
        self._set_lag(self._switches.lag)
        return self.describe()

    def describe(self) -> Body:
        return {**msgspec.to_builtins(self._switches), "struck": dict(self._struck)}

    def expire_blockhashes(self) -> int:
        """Makes every blockhash given out so far too old, by letting that many blocks pass."""
        self._chain.skip_slots(MAX_BLOCKHASH_AGE + 1)
        return self._chain.slots.processed

    async def around(self, method: str, handle: Callable[[], Body]) -> Body:
        """Handles one request as the switches say. Raises Dropped or HttpFault."""
        rules = self._matching(method)
        refusal = await self._strike(rules, "request")
        if refusal is not None:
            return refusal
        body = handle()
        for rule in rules:
            if rule.action == "duplicate":
                body = handle()
            elif rule.action == "lie" and "result" in body:
                body = {"result": _lie(rule, method, body["result"])}
        return await self._strike(rules, "answer") or body

    def notices(self, method: str) -> list[float]:
        """The delay in seconds of each copy of a websocket notification; empty if it is dropped."""
        copies = [0.0]
        for rule in self._matching(method):
            if rule.action == "drop":
                return []
            if rule.action == "duplicate":
                copies *= 2
            elif rule.action == "delay":
                copies = [rule.ms / 1000] * len(copies)
        return copies

    def _set_lag(self, lag: LagSwitch | None) -> None:
        if lag is None:
            self._chain.slots.set_lag(self._usual_lag)
        else:
            self._chain.slots.set_lag(Lag(lag.confirmed, max(lag.confirmed, lag.finalized)))
            # A transaction in the same block as the last final one would be final at once.
            self._chain.skip_slots(1)

    def _matching(self, method: str) -> list[Rule]:
        rules: list[Rule] = []
        for rule in self._switches.rules:
            if (rule.methods and method not in rule.methods) or rule.count == 0:
                continue
            if self._random.randrange(100) < rule.percent:
                if rule.count is not None:
                    rule.count -= 1
                self._struck[rule.action] += 1
                rules.append(rule)
        return rules

    async def _strike(self, rules: list[Rule], at: str) -> Body | None:
        for rule in rules:
            if rule.at != at:
                continue
            match rule.action:
                case "drop":
                    raise Dropped
                case "delay":
                    await asyncio.sleep(rule.ms / 1000)
                case "fail" if rule.http_status is not None:
                    raise HttpFault(rule.http_status)
                case "fail":
                    # Strict clients cannot read -32005 without its data.
                    data = {"numSlotsBehind": 42} if rule.code == -32005 else None
                    error = {"code": rule.code, "message": rule.message}
                    return {"error": error if data is None else {**error, "data": data}}
                case _:
                    pass
        return None


def _lie(rule: Rule, method: str, result: Any) -> Any:
    """Lies about a transaction: `absent` denies it, `failed` and `landed` claim that outcome as
    finalized."""
    if method == "getSignatureStatuses":
        slot = result["context"]["slot"]
        claims = [_claimed(rule.claim, slot) for _ in result["value"]]
        return {**result, "value": claims}
    if rule.claim == "absent":
        return [] if isinstance(result, list) else None
    return result


def _claimed(claim: str, slot: int) -> Body | None:
    if claim == "absent":
        return None
    err = None if claim == "landed" else {"InstructionError": [0, {"Custom": 1}]}
    return {
        "confirmationStatus": "finalized",
        "confirmations": None,
        "err": err,
        "slot": slot,
        "status": {"Ok": None} if err is None else {"Err": err},
    }
