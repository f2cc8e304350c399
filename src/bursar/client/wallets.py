"""Wallets: what is in them, what came in, and what is taken out."""

from collections.abc import Mapping

from bursar.client.codec import Amount, When, amount_text, when_text
from bursar.client.endpoint import (
    Carrier,
    Request,
    Resource,
    download,
    listing,
    operation,
    present,
)
from bursar.client.model import Balance, Deposit, Wallet, Withdrawal


class Wallets(Resource[Carrier]):
    @operation("GET /v1/wallets/:agentId", Wallet)
    def get(self, agent_id: str) -> Request:
        """An agent's wallet."""
        return Request(path={"agentId": agent_id})

    @operation("GET /v1/wallets/:agentId/balance", Balance)
    def balance(self, agent_id: str) -> Request:
        """Its amounts at one moment."""
        return Request(path={"agentId": agent_id})

    @operation("POST /v1/wallets/:agentId/withdraw", Withdrawal)
    def withdraw(
        self,
        agent_id: str,
        *,
        amount: Amount,
        destination: str,
        allow_off_curve: bool | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Take money out, to a Solana address. Counts towards no cap.

        `allow_off_curve=True` for addresses that no key belongs to, such as vaults.
        """
        body = present(
            amount=amount_text(amount),
            destination=destination,
            allowOffCurve=allow_off_curve,
            memo=memo,
            metadata=metadata,
        )
        return Request(path={"agentId": agent_id}, body=body, idempotency_key=idempotency_key)

    @listing("GET /v1/wallets/:agentId/withdrawals", Withdrawal)
    def withdrawals(
        self, agent_id: str, *, limit: int | None = None, after: str | None = None
    ) -> Request:
        """A wallet's withdrawals, newest first."""
        return Request(path={"agentId": agent_id}, query={"limit": limit, "after": after})

    @download("GET /v1/withdrawals/export")
    def export_withdrawals(
        self,
        *,
        agent_id: str | None = None,
        from_: When | None = None,
        to: When | None = None,
    ) -> Request:
        """The withdrawals of all wallets or one as CSV with a header line: bytes, piece by
        piece."""
        return Request(query=_moved(agent_id, from_, to))

    @operation("GET /v1/withdrawals/:id", Withdrawal)
    def get_withdrawal(self, withdrawal_id: str) -> Request:
        """One withdrawal, as it stands."""
        return Request(path={"id": withdrawal_id})

    @listing("GET /v1/wallets/:agentId/deposits", Deposit)
    def deposits(
        self, agent_id: str, *, limit: int | None = None, after: str | None = None
    ) -> Request:
        """A wallet's deposits, newest first."""
        return Request(path={"agentId": agent_id}, query={"limit": limit, "after": after})

    @download("GET /v1/deposits/export")
    def export_deposits(
        self,
        *,
        agent_id: str | None = None,
        from_: When | None = None,
        to: When | None = None,
    ) -> Request:
        """The deposits of all wallets or one as CSV with a header line: bytes, piece by piece."""
        return Request(query=_moved(agent_id, from_, to))

    @operation("POST /v1/test/wallets/:agentId/fund", Deposit)
    def fund(self, agent_id: str, *, amount: Amount, idempotency_key: str | None = None) -> Request:
        """Test mode only: mint test USDC into the wallet, credited when this answers."""
        return Request(
            path={"agentId": agent_id},
            body={"amount": amount_text(amount)},
            idempotency_key=idempotency_key,
        )


def _moved(
    agent_id: str | None, from_: When | None, to: When | None
) -> dict[str, str | int | None]:
    return {
        "agentId": agent_id,
        "from": None if from_ is None else when_text(from_),
        "to": None if to is None else when_text(to),
    }
