"""Every query of the package is prepared by PostgreSQL, without being run."""

import importlib
import pkgutil
from typing import Any, cast, get_args

import asyncpg
import pytest

import bursar
from bursar.agent.model import AgentRow
from bursar.db import Database
from bursar.ledger.model import Transfer
from bursar.policy.model import Policy
from bursar.recipient.model import RecipientRow
from bursar.settlement.model import PaymentRow, SubmissionRow, Watch
from bursar.spend.model import SpendRow
from bursar.sql import Listing, Query
from bursar.wallet.model import DepositRow, UnreadRow, WalletRow
from bursar.withdrawal.model import WithdrawalRow

# They need packages of others, and ask no database.
FOR_FRAMEWORKS = {f"bursar.mcp.{name}" for name in ("langchain", "openai_agents", "pydantic_ai")}


def queries() -> dict[str, Query]:
    """Every query that a module holds, by where it stands; of a list the one with all filters."""
    found: dict[str, Query] = {}
    for module in pkgutil.walk_packages(bursar.__path__, "bursar."):
        if not module.name.endswith("__main__") and module.name not in FOR_FRAMEWORKS:
            for name, value in vars(importlib.import_module(module.name)).items():
                several = cast("dict[Any, Any]", value) if isinstance(value, dict) else {"": value}
                for key, item in several.items():
                    query = item.whole if isinstance(item, Listing) else item
                    if isinstance(query, Query):
                        found[f"{module.name}.{name} {key}"] = query
    return found


async def test_every_query_fits_the_schema(db: Database):
    """Goal: a misspelt column, table or type is found without the request that needs it."""
    wrong: dict[str, str] = {}
    async with db.connection() as tx:
        for place, query in queries().items():
            try:
                prepared = await tx.prepare(query.text)
            except asyncpg.PostgresError as problem:
                wrong[place] = str(problem)
            else:
                assert len(prepared.get_parameters()) == len(query.names), place
    assert wrong == {}
    assert len(queries()) > 90, "the test sees queries at all"


# The table of each struct, and the fields that are not columns of it.
ROWS: list[tuple[type, str, set[str]]] = [
    (AgentRow, "agent", {"policy", "wallet"}),
    (DepositRow, "deposit", set()),
    (
        PaymentRow,
        "payment",
        {"source", "mint", "fee_payer", "asked_at", "set_aside", "reserved_lamports"},
    ),
    (Policy, "policy", set()),
    (RecipientRow, "recipient", set()),
    (SpendRow, "spend", set()),
    (SubmissionRow, "submission", {"payment"}),
    (Transfer, "transfer", set()),
    (UnreadRow, "unread_deposit", set()),
    (WalletRow, "wallet", set()),
    (Watch, "settlement_watch", set()),
    (WithdrawalRow, "withdrawal", set()),
]


@pytest.mark.parametrize(("kind", "table", "other"), ROWS, ids=[table for _, table, _ in ROWS])
async def test_every_row_has_the_columns_of_its_struct(
    db: Database, kind: type[Any], table: str, other: set[str]
):
    """Goal: each field of a row is a column of its table, and may be None where the column may."""
    async with db.connection() as tx:
        rows = await tx.fetch(
            "SELECT column_name::text AS name, is_nullable = 'YES' AS nullable"
            " FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name = $1",
            table,
        )
    nullable = {row["name"]: row["nullable"] for row in rows}
    fields = {
        name: type(None) in get_args(annotation)
        for name, annotation in kind.__annotations__.items()
        if name not in other
    }
    assert fields == {name: nullable.get(name) for name in fields}
