"""What only the asking agent and admins may read of a purchase: sealed, for a while, and no more of
it than an agent's quota holds."""

import base64
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import structlog

from bursar.custody.model import SealedSecret
from bursar.custody.vault import Vault
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database, Tx
from bursar.purchase.model import PurchaseRow, SecretKind
from bursar.purchase.order import Order
from bursar.purchase.seller import SellerAnswer
from bursar.purchase.view import PaymentHeader, SellerResponse
from bursar.sql import Query, sweeping

T = TypeVar("T")

# What was sent is needed until a purchase that waits for a person is continued: a day each. It goes
# earlier where the purchase ends and is never presented again.
_DAYS: Final[dict[SecretKind, int]] = {"order": 3, "header": 1, "response": 1}
# Of one agent. Beyond it the oldest go, an eighth of it more than have to: to find out which takes
# as long as some ten purchases.
QUOTA_BYTES: Final = 64 * 1024 * 1024
# What a process may add before it counts again. To count what an agent keeps of a day of small
# purchases takes longer than to make one.
UNCOUNTED_BYTES: Final = 1024 * 1024
_MOST_AGENTS: Final = 10_000
# So that it does not run into the database's time limit. Whoever comes next goes on.
_TRIM_AT_ONCE: Final = 10_000
# The longest UTF-8 character: a body that was cut may end within one.
_UTF8_BYTES: Final = 4
_encode = msgspec.json.Encoder().encode

_log = structlog.get_logger()

# What is kept of the purchase that `of_purchase` returned: in one statement, since each would be a
# round trip. The parameters of it are the fields of `Kept`.
KEEPING: Final = """kept AS (
      INSERT INTO purchase_secret (owner, purchase_id, kind, agent_id, master_version, sealed,
                                   bytes, expires_at)
      SELECT :owner::text, p.id, :kind::text, p.agent_id, :master_version::integer,
             :sealed::bytea, :bytes::integer, moment() + make_interval(days => :days)
        FROM of_purchase p
          ON CONFLICT (owner) DO UPDATE
         SET master_version = excluded.master_version, sealed = excluded.sealed,
             bytes = excluded.bytes, created_at = excluded.created_at,
             expires_at = excluded.expires_at
    )"""
# What was sent for those of `of_purchase` that nothing will be sent for any more: in the statement
# that ends them.
FORGETTING: Final = """forgotten AS (
      DELETE FROM purchase_secret s
       USING of_purchase p
       WHERE s.purchase_id = p.id AND s.kind = 'order'
         AND p.status IN ('free', 'failed', 'rejected', 'unpaid')
    )"""


def keeping(statement: str) -> Query:
    """The statement, which returns a purchase, and what is kept of that purchase."""
    return Query(f"WITH of_purchase AS ({statement}), {KEEPING} SELECT * FROM of_purchase")


_PUT = keeping("SELECT id, agent_id FROM purchase WHERE id = :purchase_id")
_COUNT = Query("SELECT coalesce(sum(bytes), 0) FROM purchase_secret WHERE agent_id = :agent_id")
# Of an agent that has too much, by what it is good for: an order that a person has yet to approve,
# as long as those have room by themselves; what is so new that somebody may be about to read it;
# what can be presented again; what was answered for money. What was free can be had again. Of each
# the answers go before what was sent, and the oldest first; what was renewed meanwhile is not old.
_TRIM = Query("""
    WITH ranked AS (
      SELECT s.owner, s.purchase_id, s.bytes, s.created_at, s.kind = 'response' AS is_answer,
             CASE WHEN p.status IN ('open', 'pending') THEN 0
                  WHEN s.created_at > clock_timestamp() - interval '5 minutes' THEN 1
                  WHEN s.kind <> 'response'
                       AND s.created_at > clock_timestamp() - interval '1 day' THEN 2
                  WHEN s.kind = 'response' AND p.status NOT IN ('free', 'failed', 'rejected') THEN 3
                  ELSE 4 END AS rank
        FROM purchase_secret s
        JOIN purchase p ON p.id = s.purchase_id
       WHERE s.agent_id = :agent_id
    ), weighed AS (
      SELECT r.*, sum(r.bytes) OVER (
                    ORDER BY r.rank, r.is_answer, r.created_at DESC, r.owner) AS total,
             coalesce(sum(r.bytes) FILTER (WHERE r.rank = 0) OVER (), 0) AS needed
        FROM ranked r
    ), too_much AS (
      SELECT w.owner, w.created_at
        FROM weighed w
       WHERE w.purchase_id <> :but
         AND w.total > CASE WHEN w.rank = 0 THEN :quota::bigint
                            ELSE w.needed + (:quota::bigint - w.needed) * 7 / 8 END
       ORDER BY w.total DESC
       LIMIT :limit
    ), deleted AS (
      DELETE FROM purchase_secret s
       USING too_much t
       WHERE s.owner = t.owner AND s.created_at = t.created_at
      RETURNING s.bytes
    )
    SELECT coalesce(sum(bytes), 0) FROM deleted
""")
_GET = Query("""
    SELECT owner, master_version, sealed, kind
      FROM purchase_secret
     WHERE purchase_id = :purchase_id AND expires_at > clock_timestamp()
""")
_FORGET = sweeping(
    "purchase_secret", "owner", "expires_at", "expires_at <= (SELECT clock_timestamp())"
)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Something of a purchase, sealed, that is kept for so many days."""

    owner: str
    kind: SecretKind
    master_version: int
    sealed: bytes
    bytes: int
    days: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, and the 402 that the caller brought, if it did."""

    order: Order
    brought: SellerAnswer | None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is still kept of a purchase."""

    sent: Sent | None = field(default=None, repr=False)
    header: PaymentHeader | None = field(default=None, repr=False)
    response: SellerResponse | None = field(default=None, repr=False)


def seal_order(vault: Vault, purchase_id: str, sent: Sent) -> Kept:
    return _sealed(vault, purchase_id, "order", sent)


def seal_header(vault: Vault, purchase_id: str, header: PaymentHeader) -> Kept:
    return _sealed(vault, purchase_id, "header", header)


def seal_response(vault: Vault, purchase_id: str, response: SellerResponse) -> Kept:
    return _sealed(vault, purchase_id, "response", response)


async def keep(tx: Tx, purchase: PurchaseRow, kept: Kept) -> None:
    """The newest of a kind takes the place of the one before."""
    await _PUT.run(tx, purchase_id=purchase.id, **msgspec.structs.asdict(kept))


class Quota:
    """Keeps agents within their quota. One for a process; several exceed it by what they may add
    uncounted."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # By agent, how much may be added before it is counted again.
        self._room: dict[str, int] = {}

    def add(self, agent_id: str, kept: Kept) -> None:
        """What was committed."""
        if agent_id in self._room:
            self._room[agent_id] -= kept.bytes

    async def hold(self, purchase: PurchaseRow) -> None:
        """Counts, if it is time to, and deletes what is beyond the quota, but for what is kept of
        this purchase: its caller has yet to read it. No purchase fails by it."""
        agent_id = purchase.agent_id
        if self._room.get(agent_id, -1) >= 0:
            return
        if len(self._room) >= _MOST_AGENTS:
            self._room.clear()
        # Who comes meanwhile does not count as well; nor, if it fails, does each that follows.
        self._room[agent_id] = UNCOUNTED_BYTES
        try:
            async with self._db.connection() as tx:
                kept_bytes = await _within_quota(tx, purchase)
        except (*OUT_OF_REACH, *ROLLED_BACK) as problem:
            _log.warning("quota_not_counted", agent=agent_id, problem=repr(problem))
            return
        too_much = UNCOUNTED_BYTES + kept_bytes - QUOTA_BYTES
        if too_much > 0 and agent_id in self._room:
            self._room[agent_id] -= too_much


async def _within_quota(tx: Tx, purchase: PurchaseRow) -> int:
    """What its agent has, once that is within its quota."""
    agent_id = purchase.agent_id
    kept_bytes: int = await _COUNT.value(tx, agent_id=agent_id)
    if kept_bytes > QUOTA_BYTES:
        kept_bytes -= await _TRIM.value(
            tx, agent_id=agent_id, but=purchase.id, quota=QUOTA_BYTES, limit=_TRIM_AT_ONCE
        )
    return kept_bytes


async def open_secrets(tx: Tx, vault: Vault, purchase_id: str) -> Secrets:
    rows = await _GET.rows(tx, purchase_id=purchase_id)
    opened = {
        row["kind"]: vault.open_secret(
            SealedSecret(row["owner"], row["master_version"], row["sealed"])
        )
        for row in rows
    }
    return Secrets(
        _decoded(opened.get("order"), Sent),
        _decoded(opened.get("header"), PaymentHeader),
        _decoded(opened.get("response"), SellerResponse),
    )


async def forget_secrets(tx: Tx, limit: int) -> int:
    """Deletes what is kept no longer; returns how many."""
    return await _FORGET.count(tx, limit=limit)


def as_response(answer: SellerAnswer) -> SellerResponse:
    """An answer as the API shows it. Headers that came several times are one, with commas."""
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    text = _text(answer.body, answer.truncated)
    return SellerResponse(
        status=answer.status,
        headers=headers,
        body=base64.b64encode(answer.body).decode("ascii") if text is None else text,
        encoding="base64" if text is None else "text",
        truncated=answer.truncated,
    )


def _text(body: bytes, truncated: bool) -> str | None:
    """None where it is no text."""
    for cut in range(_UTF8_BYTES if truncated else 1):
        try:
            return body[: len(body) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None


def _sealed(vault: Vault, purchase_id: str, kind: SecretKind, value: Any) -> Kept:
    secret = vault.seal_secret(f"{purchase_id}:{kind}", _encode(value))
    return Kept(
        owner=secret.owner,
        kind=kind,
        master_version=secret.master_version,
        sealed=secret.sealed,
        bytes=len(secret.sealed),
        days=_DAYS[kind],
    )


def _decoded(opened: bytes | None, kind: type[T]) -> T | None:
    return None if opened is None else msgspec.json.decode(opened, type=kind)
