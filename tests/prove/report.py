"""The report of a campaign, as a section of a page."""

import os
from pathlib import Path
from typing import Final

from tests.prove.campaign import Outcome

BEGIN: Final = "<!-- make prove: begin -->"
END: Final = "<!-- make prove: end -->"
# What may be wrong, and what it is called.
WRONGS: Final = {
    "lost": "acknowledged and gone, or told otherwise later",
    "double": "done twice, or without being asked for",
    "cap": "a cap, an allowlist or a freeze passed",
    "old policy": "decided by a policy that was already replaced",
    "revoked key": "a revoked key that still worked",
    "stuck": "not ended, or not answered",
    "chain": "the chain and the API tell different things of a payment",
    "ledger": "a balance that is not the chain's, or sums that do not fit",
    "webhook": "an event that never arrived, or with a wrong signature",
    "answer": "an answer that should not be",
}


def render(outcome: Outcome) -> str:
    journal, plan = outcome.journal, outcome.plan
    found = {kind: sum(1 for k, _ in journal.wrong if k == kind) for kind in WRONGS}
    lines = [
        f"Seed {plan.seed}, {outcome.seconds / 60:.0f} minutes, {outcome.struck.total()} faults,",
        f"{outcome.audits} audits; {os.cpu_count()} cores, load {os.getloadavg()[2]:.0f}.",
        "",
        "| Wrong | | Found |",
        "|---|---|---|",
        *(f"| {kind} | {words} | {found[kind]} |" for kind, words in WRONGS.items()),
        "",
        "| Done and acknowledged | |",
        "|---|---|",
        f"| Spends decided | {len(journal.spends):,} |",
        *(f"| … {status} at the end | {n:,} |" for status, n in outcome.statuses.most_common()),
        f"| Payments on the chain, withdrawals included | {outcome.payments:,} |",
        *(
            f"| {_PLURALS[name]} | {n:,} |"
            for name, n in journal.operations.most_common()
            if name != "spend"
        ),
        f"| Webhooks delivered ({outcome.repeated:,} of them again) | {outcome.deliveries:,} |",
        f"| Requests that had to be asked again | {journal.retries.total():,} |",
        "",
        "| Fault | Times | Next spend acknowledged after | All nodes ready after |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {n} | {_times(outcome.resumed[kind])} | {_times(outcome.whole[kind])} |"
            for kind, n in sorted(outcome.struck.items())
        ),
        "",
        "Times are median and worst, from the strike and from its end.",
        f"From the end of the load until nothing was on its way: {_times(outcome.calmed)}.",
    ]
    if outcome.left_out:
        lines.append(f"This machine cannot do: {', '.join(sorted(outcome.left_out))}.")
    return "\n".join(lines)


_PLURALS: Final = {
    "approve": "Approvals",
    "deny": "Denials",
    "replay": "Spends asked for again, with the same answer",
    "read": "Reads of a spend and a wallet",
    "change": "Changes of a policy or a status",
    "withdrawal": "Withdrawals",
    "deposit": "Deposits",
    "key": "Keys made, used and revoked",
}


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} s, {ordered[-1]:.2f} s"


def write(file: Path, text: str) -> None:
    """Between the markers of the file; at the end of one that has none, which may be new."""
    known = file.read_text("utf-8") if file.exists() else ""
    before, _, rest = known.partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")
