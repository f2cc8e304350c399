"""A draft: what would change of the policies, or of one budget, and what that makes of the terms
that a request was judged by."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import UNSET

from bursar.backtest.recorded import Recorded
from bursar.policy.engine import Terms
from bursar.policy.limits import BudgetTerms, Limit
from bursar.policy.model import EntryList, PolicyChange


class Draft(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A change of the policy of agents, of the limits of a budget, or both. It changes what was in
    force at each request and leaves the rest as it was then: a draft that says nothing changes
    nothing."""

    agent_ids: frozenset[str] = frozenset()
    policy: PolicyChange = PolicyChange()
    budget_id: str | None = None
    budget_limits: tuple[Limit, ...] | None = None
    # What a policy that says null allows its payments to cost a day.
    usual_network_lamports: int = 0

    @cached_property
    def allows(self) -> EntryList | None:
        return _entries(self.policy.allowlist)

    @cached_property
    def blocks(self) -> EntryList | None:
        return _entries(self.policy.blocklist)

    @property
    def counts_windows(self) -> bool:
        """Whether it needs to know what wallets used in windows that no limit may have stood on."""
        return bool(self.policy.limits)

    def terms_of(self, request: Recorded) -> Terms:
        """The terms that the request would have been judged by. Many requests were judged by the
        same terms, so what the draft makes of them is kept."""
        named, terms = request.agent_id in self.agent_ids, request.terms
        asked: tuple[object, ...] = (id(terms), named)
        if named and self._looks_at_recipients:
            asked += (request.agent_id, request.recipient, request.pay_to)
            asked += (request.pays_blocked_host,)
        made = self._made.get(asked)
        if made is None:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            made = self._made[asked] = terms, self._terms(request)
        return made[1]

    def forget_terms(self) -> None:
        """Those that are kept take memory, and are quickly made again."""
        self._made.clear()

    @cached_property
    def _made(self) -> dict[tuple[object, ...], tuple[Terms, Terms]]:
        """With the terms that they were made of: while those are kept, no other object has their
        id."""
        return {}

    @cached_property
    def _looks_at_recipients(self) -> bool:
        return not (self.allows is None and self.blocks is None and self._limits is None)

    def _terms(self, request: Recorded) -> Terms:
        terms = request.terms
        changes: dict[str, Any] = {}
        if request.agent_id in self.agent_ids:
            changes = self._policy(request)
        if self.budget_limits is not None and terms.budgets:
            changes["budgets"] = tuple(self._budget(budget) for budget in terms.budgets)
        return msgspec.structs.replace(terms, **changes) if changes else terms

    def _policy(self, request: Recorded) -> dict[str, Any]:
        change = self.policy
        given = {
            name: value for name in _AS_THEY_ARE if (value := getattr(change, name)) is not UNSET
        }
        if change.network_lamports_daily is not UNSET:
            own = change.network_lamports_daily
            given["network_budget_lamports"] = self.usual_network_lamports if own is None else own
        if self._limits is not None:
            given["limits"] = tuple(
                limit
                for limit, entry in self._limits
                if entry is None or entry.matches(request.recipient)
            )
        lists = request.terms.lists
        if self.blocks is not None:
            blocked = request.pays_blocked_host or self.blocks.matches_any(
                request.recipient, request.pay_to
            )
            lists = "pf"[blocked] + lists[1:]
        if self.allows is not None:
            own_wallet = request.wallet_address in (request.recipient, request.pay_to)
            refused = own_wallet or not self.allows.matches(request.recipient)
            lists = lists[0] + "pf"[refused] + lists[2:]
        return {**given, "lists": lists}

    def _budget(self, budget: BudgetTerms) -> BudgetTerms:
        if budget.id != self.budget_id or self.budget_limits is None:
            return budget
        return msgspec.structs.replace(budget, limits=self.budget_limits)

    @cached_property
    def _limits(self) -> Sequence[tuple[Limit, EntryList | None]] | None:
        """With what each concerns; None: everybody."""
        if self.policy.limits is UNSET:
            return None
        return [
            (limit, None if limit.recipient is None else EntryList((limit.recipient,)))
            for limit in self.policy.limits
        ]


# Terms that are kept for the next request.
_MOST_MADE: Final = 2_048
# Fields that terms have under the same name.
_AS_THEY_ARE = (
    "frozen",
    "cap_micros_daily",
    "cap_micros_per_transaction",
    "approval_threshold_micros",
)


def _entries(entries: Any) -> EntryList | None:
    return None if entries is UNSET else EntryList(entries)
