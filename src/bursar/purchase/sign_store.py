"""Queries on whether what was signed for a purchase may be stored, and so leave."""

from typing import Final

import msgspec

from bursar.db import Tx
from bursar.purchase.model import PurchaseRow, Signed
from bursar.purchase.secret_store import KEEPING, Kept
from bursar.purchase.store import purchase_of
from bursar.sql import Query, columns, made

# When the chain is worth a look although the seller has not answered. Before, it would only hold
# the row that the answer is written to.
UNANSWERED_MILLIS: Final = 500
# Whoever changed the purchase meanwhile was waited for, and the conditions are those of what it is
# now: a row that others changed is looked at again before it is written.
_PRESENT = Query(f"""
    WITH standing AS MATERIALIZED (
      SELECT * FROM standing_to_sign(:realm_id, :agent_id, :mode, :spend_id)
    ), of_purchase AS (
      UPDATE purchase p
         SET status = 'presented', raw = :raw, signature = :signature, fee_payer = :fee_payer,
             blockhash = :blockhash, last_valid_height = :last_valid_height,
             signed_slot = :signed_slot, signed_at = moment(), updated_at = moment(),
             busy_until = NULL, problem = NULL,
             next_check_at = clock_timestamp() + {UNANSWERED_MILLIS} * interval '1 millisecond'
        FROM standing s
       WHERE p.id = :purchase_id AND p.status IN ('open', 'pending') AND p.signature IS NULL
         AND p.called_off_by IS NULL
         AND s.is_approved AND NOT s.is_stopped AND NOT s.is_frozen AND s.outflows_are_known
      RETURNING {columns(PurchaseRow, "p")}
    ), {KEEPING}
    SELECT s.is_stopped, s.is_approved, s.is_frozen, s.outflows_are_known, p.*
      FROM standing s
      LEFT JOIN of_purchase p ON true
""")


class Standing(msgspec.Struct, frozen=True):
    """What a signature of a wallet rests on. `outflows_are_known`: nothing that this database
    forgot can have left it (`outflow_store.py`)."""

    is_stopped: bool
    is_approved: bool
    is_frozen: bool
    outflows_are_known: bool


async def present_purchase(
    tx: Tx, purchase: PurchaseRow, signed: Signed, header: Kept
) -> tuple[Standing, PurchaseRow | None]:
    """open | pending -> presented, with all that was signed, where its standing allows it and it
    has not ended meanwhile. Locks the realm, for the stop, then the wallet."""
    row = await _PRESENT.one(
        tx,
        purchase_id=purchase.id,
        realm_id=purchase.realm_id,
        agent_id=purchase.agent_id,
        mode=purchase.mode,
        spend_id=purchase.spend_id,
        **msgspec.structs.asdict(signed),
        **msgspec.structs.asdict(header),
    )
    return made(Standing, row), None if row["id"] is None else purchase_of(row)
