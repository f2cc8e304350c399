"""`bursar audit`: recomputes the books from the journal and the spends, and names what differs.

The queries stand here and not in a store: what checks the books shares nothing with what wrote
them. Everything is read in one snapshot, so it can run beside the live service.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bursar.db import Database, Tx
from bursar.ledger import seal, store
from bursar.ledger.meter_questions import OF_METERS
from bursar.ledger.question import Question

# Differences that are named one by one; beyond that only counted.
MAX_NAMED: Final = 20
_SEALS_AT_ONCE: Final = 100
# How long one question may take. (None would mean the pool's own bound, which is for requests.)
_QUESTION_SECONDS: Final = 6 * 3600
# Events and kept answers take more room than the books themselves. So unless everything is to be
# checked, only the newest rows are compared with them.
NEWEST: Final = 100_000
_LIMIT: Final = f"LIMIT {NEWEST}"


@dataclass(slots=True)
class Finding:
    """The answer to one question about the books. `problem`: why there is none."""

    question: str
    checked: int = 0
    differences: list[str] = field(default_factory=list)
    difference_count: int = 0
    problem: str | None = None

    @property
    def clean(self) -> bool:
        return self.difference_count == 0


# Ends of the last 89 days: events are kept for 90.
_OUTCOMES: Final = f"""
(SELECT id, agent_id, status, 'transaction.' || status AS type, amount_micros, signature, created_at
   FROM spend WHERE (status = 'settled' OR status = 'rejected' AND verdict <> 'rejected')
    AND coalesce(settled_at, updated_at) > clock_timestamp() - interval '89 days'
  ORDER BY id DESC {_LIMIT})
UNION ALL
(SELECT id, agent_id, status, 'withdrawal.' || status, amount_micros, signature, created_at
   FROM withdrawal WHERE status IN ('settled', 'failed')
    AND coalesce(settled_at, created_at) > clock_timestamp() - interval '89 days'
  ORDER BY id DESC {_LIMIT})"""
# Compares the first fields, as the API writes them: further back a memo may say anything.
_SAYS_THE_SAME: Final = """
  starts_with(t.data, '{"id":"' || o.id || '","agentId":"' || o.agent_id || '","amount":"'
              || o.amount_micros / 1000000 || '.' || lpad((o.amount_micros % 1000000)::text, 6, '0')
              || '"')
  AND substring(t.data FROM '"signature":("[^"]*"|null)')
      = coalesce('"' || o.signature || '"', 'null')"""
_PURCHASES: Final = f"""
 SELECT id, agent_id, status, created_at FROM purchase
  WHERE status IN ('paid', 'unpaid', 'failed')
    AND updated_at > clock_timestamp() - interval '89 days'
  ORDER BY id DESC {_LIMIT}"""
_ANSWERS: Final = f"SELECT * FROM idempotency ORDER BY created_at DESC {_LIMIT}"


QUESTIONS: Final = (
    Question(
        "every transfer follows from the one before it",
        "SELECT count(*) FROM transfer",
        """
        SELECT agent_id || ' transfer ' || number || ' does not follow from the one before'
          FROM (SELECT *, lag(number, 1, 0::bigint) OVER w AS n,
                       lag(credits_posted_after::bigint, 1, 0::bigint) OVER w AS c,
                       lag(debits_posted_after::bigint, 1, 0::bigint) OVER w AS d,
                       lag(debits_pending_after::bigint, 1, 0::bigint) OVER w AS p
                  FROM transfer WINDOW w AS (PARTITION BY agent_id ORDER BY number)) t
         WHERE number <> n + 1
            OR credits_posted_after <> c + CASE kind WHEN 'deposit' THEN amount_micros ELSE 0 END
            OR debits_posted_after <> d + CASE kind WHEN 'post' THEN amount_micros ELSE 0 END
            OR debits_pending_after <> p + CASE kind WHEN 'reserve' THEN amount_micros
                                            WHEN 'deposit' THEN 0 ELSE -amount_micros END""",
    ),
    Question(
        "every wallet is the sum of its transfers",
        "SELECT count(*) FROM wallet",
        """
        SELECT agent_id || ' wallet: balance ' || credits_posted - debits_posted || ', reserved '
               || debits_pending || '; its transfers say ' || credits - debits || ' and ' || pending
          FROM (SELECT w.*,
                       coalesce(sum(amount_micros) FILTER (WHERE kind = 'deposit'), 0) AS credits,
                       coalesce(sum(amount_micros) FILTER (WHERE kind = 'post'), 0) AS debits,
                       coalesce(sum(CASE kind WHEN 'reserve' THEN amount_micros
                                              WHEN 'deposit' THEN 0
                                              ELSE -amount_micros END), 0) AS pending,
                       count(t.agent_id) AS lines
                  FROM wallet w LEFT JOIN transfer t USING (agent_id)
                 GROUP BY w.agent_id) x
         WHERE credits_posted <> credits OR debits_posted <> debits OR debits_pending <> pending
            OR transfers <> lines""",
    ),
    Question(
        "every account of the ledger is what its wallet says",
        "SELECT count(*) FROM ledger_entry",
        """
        WITH entered AS (
          SELECT agent_id, account, sum(credit_micros) - sum(debit_micros) AS micros
            FROM ledger_entry GROUP BY 1, 2),
        counted AS (
          SELECT agent_id, side.account, side.micros
            FROM wallet CROSS JOIN LATERAL (VALUES
              ('wallet:' || agent_id, credits_posted - debits_posted - debits_pending),
              ('reserved:' || agent_id, debits_pending::bigint),
              ('outside', debits_posted - credits_posted)) AS side (account, micros))
        SELECT agent_id || ' ' || account || ': its entries say ' || coalesce(entered.micros, 0)
               || ', its wallet ' || coalesce(counted.micros::text, 'nothing')
          FROM entered FULL JOIN counted USING (agent_id, account)
         WHERE coalesce(entered.micros, 0) IS DISTINCT FROM counted.micros""",
    ),
    Question(
        "every spend holds, has paid or has released exactly its amount",
        "SELECT count(*) FROM spend",
        """
        SELECT s.id || ' is ' || s.status || ', but its transfers are: '
               || coalesce(t.kinds, 'none')
          FROM spend s
          LEFT JOIN (SELECT subject_id, string_agg(kind, ' ' ORDER BY number) AS kinds,
                            min(amount_micros) AS least, max(amount_micros) AS most,
                            min(agent_id) AS agent_id
                       FROM transfer WHERE kind <> 'deposit' GROUP BY subject_id) t
            ON t.subject_id = s.id
         WHERE NOT CASE s.status
                     WHEN 'pending' THEN t.kinds IS NOT DISTINCT FROM 'reserve'
                     WHEN 'approved' THEN t.kinds IS NOT DISTINCT FROM 'reserve'
                     WHEN 'settled' THEN t.kinds IS NOT DISTINCT FROM 'reserve post'
                     ELSE t.kinds IS NULL OR t.kinds = 'reserve void' END
            OR (t.kinds IS NOT NULL AND (t.least <> s.amount_micros OR t.most <> s.amount_micros
                                         OR t.agent_id <> s.agent_id))""",
    ),
    Question(
        "every spend was judged on what its wallet had then",
        "SELECT count(*) FROM spend",
        """
        SELECT s.id || ' was judged on ' || s.used[2] || ' available after ' || s.used[6]
               || ' transfers; the journal says otherwise'
          FROM spend s
          LEFT JOIN transfer before ON before.agent_id = s.agent_id AND before.number = s.used[6]
          LEFT JOIN transfer own ON own.agent_id = s.agent_id AND own.number = s.used[6] + 1
         WHERE s.used[2] <> coalesce(before.credits_posted_after - before.debits_posted_after
                                     - before.debits_pending_after, 0)
            OR (s.verdict <> 'rejected') <> (own.subject_id IS NOT DISTINCT FROM s.id)""",
    ),
    Question(
        "every withdrawal holds, has paid or has released exactly its amount",
        "SELECT count(*) FROM withdrawal",
        """
        SELECT w.id || ' is ' || w.status || ', but its transfers are: '
               || coalesce(t.kinds, 'none')
          FROM withdrawal w
          LEFT JOIN (SELECT subject_id, string_agg(kind, ' ' ORDER BY number) AS kinds,
                            min(amount_micros) AS least, max(amount_micros) AS most,
                            min(agent_id) AS agent_id
                       FROM transfer WHERE kind <> 'deposit' GROUP BY subject_id) t
            ON t.subject_id = w.id
         WHERE t.kinds IS DISTINCT FROM CASE w.status WHEN 'pending' THEN 'reserve'
                                                      WHEN 'settled' THEN 'reserve post'
                                                      ELSE 'reserve void' END
            OR t.least <> w.amount_micros OR t.most <> w.amount_micros
            OR t.agent_id <> w.agent_id""",
    ),
    Question(
        "every reserve belongs to a payment",
        "SELECT count(*) FROM transfer WHERE kind = 'reserve'",
        """
        SELECT t.subject_id || ' is reserved, but there is no such spend or withdrawal'
          FROM transfer t LEFT JOIN spend s ON s.id = t.subject_id
          LEFT JOIN withdrawal w ON w.id = t.subject_id
         WHERE t.kind = 'reserve' AND s.id IS NULL AND w.id IS NULL""",
    ),
    Question(
        "every deposit in the journal came from the chain, and the reverse",
        "SELECT count(*) FROM deposit WHERE status = 'credited'",
        """
        SELECT coalesce(d.id, t.subject_id) || ' is ' || coalesce(d.amount_micros::text, 'no')
               || ' credited deposit, ' || coalesce(t.amount_micros::text, 'nothing')
               || ' in the journal'
          FROM (SELECT * FROM deposit WHERE status = 'credited') d
          FULL JOIN (SELECT * FROM transfer WHERE kind = 'deposit') t ON t.subject_id = d.id
         WHERE d.id IS NULL OR t.subject_id IS NULL OR t.amount_micros <> d.amount_micros
            OR t.agent_id <> d.agent_id""",
    ),
    Question(
        "every settled payment was made by exactly one attempt",
        "SELECT count(*) FROM payment WHERE state = 'settled'",
        """
        SELECT o.id || ' is settled with ' || o.signature || '; of its attempts '
               || count(s.payment_id) || ' say so'
          FROM (SELECT id, signature FROM spend
                 WHERE status = 'settled' AND purchase_id IS NULL
                UNION ALL SELECT id, signature FROM withdrawal WHERE status = 'settled') o
          LEFT JOIN payment p ON p.id = o.id
          LEFT JOIN submission s ON s.payment_id = o.id AND s.state = 'settled'
         GROUP BY o.id, o.signature, p.problem
        HAVING NOT (count(s.payment_id) = 1 AND min(s.signature) = o.signature
                    OR count(s.payment_id) = 0
                    AND coalesce(p.problem, '') = 'found on the chain')""",
    ),
    Question(
        "every payment is where its spend or withdrawal is",
        "SELECT count(*) FROM payment",
        """
        SELECT p.id || ' is ' || p.state || ' on its way, but ' || coalesce(o.status, 'unknown')
               || ' in the books, or differs in what it pays'
          FROM payment p
          LEFT JOIN (SELECT id, agent_id, amount_micros, pay_to, reject_code, status FROM spend
                     UNION ALL
                     SELECT id, agent_id, amount_micros, destination, failure_code,
                            CASE status WHEN 'pending' THEN 'approved'
                                        WHEN 'failed' THEN 'rejected' ELSE status END
                       FROM withdrawal) o ON o.id = p.id
         WHERE o.status IS DISTINCT FROM CASE p.state WHEN 'settled' THEN 'settled'
                                                      WHEN 'failed' THEN 'rejected'
                                                      ELSE 'approved' END
            OR (p.state = 'failed'
                AND o.reject_code NOT IN ('settlement_failed', 'destination_invalid',
                                          'network_cost_exceeded')
                AND NOT (o.reject_code = 'cancelled' AND p.called_off_by IS NOT NULL))
            OR o.agent_id <> p.agent_id OR o.amount_micros <> p.amount_micros
            OR o.pay_to <> p.destination""",
    ),
    Question(
        "every spend and withdrawal to be paid is on its way",
        "SELECT count(*) FROM payment WHERE state IN ('waiting', 'live')",
        """
        SELECT o.id || ' is to be paid, and no payment is on its way'
          FROM (SELECT id FROM spend WHERE status = 'approved' AND purchase_id IS NULL
                UNION ALL SELECT id FROM withdrawal WHERE status = 'pending') o
          LEFT JOIN payment p ON p.id = o.id AND p.state IN ('waiting', 'live')
         WHERE p.id IS NULL""",
    ),
    Question(
        "every payment has the attempts that it says",
        "SELECT count(*) FROM submission",
        """
        SELECT p.id || ' is ' || p.state || ' after ' || p.attempts || ' attempts; there are '
               || count(s.payment_id) || ', alive ' || count(*) FILTER (WHERE s.state = 'live')
          FROM payment p LEFT JOIN submission s ON s.payment_id = p.id
         GROUP BY p.id
        HAVING count(s.payment_id) <> p.attempts
            OR coalesce(max(s.attempt), 0) <> p.attempts
            OR count(*) FILTER (WHERE s.state = 'live') <> (p.state = 'live')::int""",
    ),
    Question(
        "every dead attempt has a reason",
        "SELECT count(*) FROM submission WHERE state = 'dead'",
        """
        SELECT payment_id || ' attempt ' || attempt || ' is dead, and its reason is missing'
          FROM submission WHERE state = 'dead' AND coalesce(outcome, '') = ''""",
    ),
    Question(
        "every purchase is where its spend is, and settlement pays none",
        "SELECT count(*) FROM purchase",
        # A refusal may be forgotten; a price without its spend may not.
        """
        SELECT coalesce(p.id, s.purchase_id) || ' is ' || coalesce(p.status, 'unknown')
               || ', but its spend ' || coalesce(s.status, 'unknown')
               || coalesce(' (' || s.reject_code || ')', '') || ', or differs in what it pays'
               || CASE WHEN y.id IS NULL THEN '' ELSE ', and settlement pays it too' END
          FROM (SELECT * FROM purchase WHERE spend_id IS NOT NULL) p
          FULL JOIN (SELECT * FROM spend WHERE purchase_id IS NOT NULL) s
            ON s.id = p.spend_id AND s.purchase_id = p.id
          LEFT JOIN payment y ON y.id = s.id
         WHERE NOT coalesce(CASE p.status
                 WHEN 'open' THEN s.status = 'approved'
                 WHEN 'pending' THEN s.status IN ('pending', 'approved')
                 WHEN 'presented' THEN s.status = 'approved'
                 WHEN 'paid' THEN s.status = 'settled'
                 WHEN 'unpaid' THEN s.reject_code = 'purchase_expired'
                 WHEN 'failed' THEN s.reject_code IN ('cancelled', 'hold_expired', 'terms_changed')
                 WHEN 'rejected' THEN s.id IS NULL OR s.reject_code = p.reject_code END, false)
            OR s.agent_id <> p.agent_id OR s.amount_micros <> p.amount_micros
            OR s.pay_to <> p.pay_to OR y.id IS NOT NULL""",
    ),
    Question(
        "every purchase was signed once if it was presented, and never otherwise",
        "SELECT count(*) FROM purchase",
        """
        SELECT p.id || ' is ' || p.status || CASE WHEN p.signature IS NULL THEN ' and was not'
               ELSE ' and was' END || ' signed, or others have its signature'
          FROM purchase p
         WHERE (p.status IN ('presented', 'paid', 'unpaid'))
               <> (p.signature IS NOT NULL AND p.raw IS NOT NULL)
            OR EXISTS (SELECT FROM purchase o WHERE o.signature = p.signature AND o.id <> p.id)""",
    ),
    Question(
        "every window's use is the sum of its spends, and the day's is within its cap",
        "SELECT (SELECT count(*) FROM usage) + (SELECT count(*) FROM wallet)",
        """
        WITH hours AS (
          SELECT agent_id, date_trunc('hour', created_at, 'UTC') AS start,
                 sum(amount_micros) FILTER (WHERE status <> 'rejected') AS micros,
                 count(*) FILTER (WHERE status <> 'rejected') AS spends,
                 sum(network_lamports) AS lamports
            FROM spend GROUP BY 1, 2),
        counted AS (
          SELECT agent_id, k.kind,
                 CASE WHEN k.kind <> 'life' THEN date_trunc(k.kind, start, 'UTC') END AS start,
                 sum(micros) AS micros, sum(spends) AS spends,
                 sum(CASE k.kind WHEN 'day' THEN lamports END) AS lamports
            FROM hours CROSS JOIN unnest(ARRAY['hour', 'day', 'week', 'month', 'life']) AS k (kind)
           GROUP BY 1, 2, 3),
        kept AS (
          SELECT agent_id, k.kind, date_trunc(k.kind, windows_at, 'UTC') AS start, k.micros,
                 k.spends, k.lamports
            FROM wallet CROSS JOIN LATERAL (VALUES
              ('hour', hour_micros, hour_count, 0), ('day', day_micros, day_count, day_lamports),
              ('week', week_micros, week_count, 0), ('month', month_micros, month_count, 0))
              AS k (kind, micros, spends, lamports)
          UNION ALL SELECT agent_id, 'life', NULL, life_micros, life_count, 0 FROM wallet
          UNION ALL SELECT agent_id, window_kind, window_start, micros, spends, lamports FROM usage)
        SELECT coalesce(k.agent_id, c.agent_id) || ' in the ' || coalesce(k.kind, c.kind) || ' of '
               || coalesce(k.start, c.start, 'epoch') || ' used ' || coalesce(k.micros, 0) || ' in '
               || coalesce(k.spends, 0) || ' spends for ' || coalesce(k.lamports, 0)
               || ' lamports; its spends say ' || coalesce(c.micros, 0) || ', '
               || coalesce(c.spends, 0) || ' and ' || coalesce(c.lamports, 0)
          FROM kept k
          FULL JOIN counted c ON c.agent_id = k.agent_id AND c.kind = k.kind
                             AND coalesce(c.start, 'epoch') = coalesce(k.start, 'epoch')
         WHERE coalesce(k.micros, 0) <> coalesce(c.micros, 0)
            OR coalesce(k.spends, 0) <> coalesce(c.spends, 0)
            OR coalesce(k.lamports, 0) <> coalesce(c.lamports, 0)
        UNION ALL
        SELECT agent_id || ' used ' || day_micros || ' of ' || day_cap_micros || ' today, and '
               || day_lamports || ' of ' || day_cap_lamports || ' lamports'
          FROM wallet WHERE day_micros > day_cap_micros OR day_lamports > day_cap_lamports""",
    ),
    *OF_METERS,
    Question(
        "every wallet knows how many of its spends wait for a person",
        "SELECT count(*) FROM wallet",
        """
        SELECT w.agent_id || ' says ' || w.pending_count || ' wait; there are ' || count(s.id)
          FROM wallet w LEFT JOIN spend s ON s.agent_id = w.agent_id AND s.status = 'pending'
         GROUP BY w.agent_id HAVING w.pending_count <> count(s.id)""",
    ),
    Question(
        "every spend kept to the policy that it was decided under",
        "SELECT count(*) FROM spend",
        # Only a day that reserved more than the least of its caps can have passed one; those days
        # are played again in the order of the journal, in which a release makes room for others.
        """
        WITH ruled AS (
          SELECT s.id, s.agent_id, (s.created_at AT TIME ZONE 'UTC')::date AS day, s.status,
                 s.amount_micros, s.policy_version, p.version, p.frozen,
                 p.cap_micros_daily AS cap, p.cap_micros_per_transaction AS cap_each
            FROM spend s
            LEFT JOIN policy p ON p.agent_id = s.agent_id AND p.version = s.policy_version
           WHERE s.status <> 'rejected' OR s.updated_at <> s.created_at),
        full_days AS (
          SELECT agent_id, day FROM ruled GROUP BY 1, 2 HAVING sum(amount_micros) > min(cap)),
        played AS (
          SELECT r.*, t.kind, sum(CASE t.kind WHEN 'reserve' THEN t.amount_micros
                                              ELSE -t.amount_micros END)
                              OVER (PARTITION BY r.agent_id, r.day ORDER BY t.number) AS used
            FROM full_days JOIN ruled r USING (agent_id, day)
            JOIN transfer t ON t.subject_id = r.id AND t.kind IN ('reserve', 'void'))
        SELECT id || ' took its day to ' || used || ', beyond the ' || cap || ' of policy version '
               || version
          FROM played WHERE kind = 'reserve' AND used > cap
        UNION ALL
        SELECT id || ' of ' || amount_micros || ' is ' || status || ', which policy version '
               || policy_version || CASE WHEN version IS NULL THEN ', unknown here,'
                                         WHEN frozen THEN ', frozen,' ELSE '' END || ' forbids'
          FROM ruled
         WHERE version IS NULL OR status <> 'rejected' AND frozen OR amount_micros > cap_each""",
    ),
    Question(
        "the running totals are the counts of the spends",
        "SELECT count(*) FROM spend_total",
        """
        WITH kept AS (
          SELECT realm_id, agent_id, day, recipient, sum(spend_count) AS spends,
                 sum(rejected_count) AS rejected, sum(settled_micros) AS settled
            FROM (SELECT * FROM spend_total
                  UNION ALL
                  SELECT realm_id, unnest(ARRAY[agent_id::text, '']) COLLATE "C", day, recipient,
                         spend_count, rejected_count, settled_micros
                    FROM total_delta) t
           GROUP BY 1, 2, 3, 4),
        counted AS (
          SELECT realm_id, unnest(ARRAY[agent_id::text, '']) COLLATE "C" AS agent_id,
                 (created_at AT TIME ZONE 'UTC')::date AS day,
                 -- Refused ones have one name in the totals.
                 CASE WHEN verdict = 'rejected' THEN '' ELSE recipient END AS recipient,
                 count(*) AS spends,
                 count(*) FILTER (WHERE status = 'rejected') AS rejected,
                 coalesce(sum(amount_micros) FILTER (WHERE status = 'settled'), 0) AS settled
            FROM spend GROUP BY 1, 2, 3, 4),
        -- What the totals have beyond what is there: refusals of days before the horizon.
        compared AS (
          SELECT realm_id, agent_id, day, recipient,
                 coalesce(kept.spends, 0) - coalesce(counted.spends, 0) AS spends,
                 coalesce(kept.rejected, 0) - coalesce(counted.rejected, 0) AS rejected,
                 coalesce(kept.settled, 0) - coalesce(counted.settled, 0) AS settled
            FROM kept FULL JOIN counted USING (realm_id, agent_id, day, recipient))
        SELECT 'totals of realm ' || realm_id || ' agent ' || coalesce(nullif(agent_id, ''), 'all')
               || ' on ' || day || ' for ' || recipient || ' differ'
          FROM compared CROSS JOIN horizon
         WHERE spends <> rejected OR settled <> 0 OR rejected < 0
            OR rejected > 0 AND day >= horizon.refusals
        UNION ALL
        SELECT w.agent_id || ' says that ' || w.forgotten || ' refusals are forgotten; its totals '
               || 'have ' || coalesce(sum(c.rejected), 0) || ' more than are there'
          FROM wallet w LEFT JOIN compared c
            ON c.realm_id = w.realm_id AND c.agent_id = w.agent_id
         GROUP BY w.agent_id HAVING w.forgotten <> coalesce(sum(c.rejected), 0)""",
    ),
    Question(
        "the totals by day and by recipient are the sums of the running totals",
        "SELECT (SELECT count(*) FROM day_total) + (SELECT count(*) FROM recipient_total)",
        """
        WITH summed AS (
          SELECT realm_id, agent_id, day, NULL AS recipient, sum(spend_count) AS spends,
                 sum(rejected_count) AS rejected, sum(settled_micros) AS settled
            FROM spend_total GROUP BY 1, 2, 3
          UNION ALL
          SELECT realm_id, agent_id, NULL, recipient, 0, 0, sum(settled_micros)
            FROM spend_total GROUP BY 1, 2, 4 HAVING sum(settled_micros) > 0),
        kept AS (
          SELECT realm_id, agent_id, day, NULL AS recipient, spend_count, rejected_count,
                 settled_micros
            FROM day_total
          UNION ALL
          SELECT realm_id, agent_id, NULL, recipient, 0, 0, settled_micros FROM recipient_total),
        differing AS (
          (TABLE summed EXCEPT ALL TABLE kept) UNION ALL (TABLE kept EXCEPT ALL TABLE summed))
        SELECT DISTINCT 'the total of realm ' || realm_id || ' agent '
               || coalesce(nullif(agent_id, ''), 'all')
               || coalesce(' on ' || day, ' for ' || recipient) || ' differs'
          FROM differing""",
    ),
    Question(
        "every decision about a wallet is there once",
        "SELECT count(*) FROM spend",
        """
        SELECT w.agent_id || ' made ' || w.decisions || ' decisions, of which ' || w.forgotten
               || ' are forgotten and ' || count(s.id) || ' there'
          FROM wallet w LEFT JOIN spend s ON s.agent_id = w.agent_id
         GROUP BY w.agent_id
        HAVING count(s.id) <> w.decisions - w.forgotten
            OR count(DISTINCT s.decision_number) <> count(s.id)
            OR max(s.decision_number) > w.decisions""",
    ),
    Question(
        "every wallet knows whether it is low",
        "SELECT count(*) FROM wallet",
        """
        SELECT w.agent_id || ' says low: ' || w.is_low
          FROM wallet w JOIN agent a ON a.id = w.agent_id
          JOIN policy p ON p.agent_id = a.id AND p.version = a.policy_version
         WHERE w.is_low <> ((w.credits_posted - w.debits_posted) * 10 < p.cap_micros_daily)""",
    ),
    Question(
        f"every outcome has its event (of the newest {NEWEST:,} spends and withdrawals)",
        f"SELECT count(*) FROM ({_OUTCOMES}) AS outcome",
        f"""
        WITH outcome AS ({_OUTCOMES}),
        told AS (
          SELECT substr(data, 8, 30) AS id, type, data FROM event
           WHERE type IN ('transaction.settled', 'transaction.rejected', 'withdrawal.settled',
                          'withdrawal.failed')
             AND created_at >= (SELECT min(created_at) FROM outcome) - interval '1 hour')
        SELECT o.id || ' is ' || o.status || '; of its events ' || count(t.id) || ' say so, '
               || count(t.id) FILTER (WHERE {_SAYS_THE_SAME}) || ' with its amount and signature'
          FROM outcome o LEFT JOIN told t ON t.id = o.id AND t.type = o.type
         GROUP BY o.id, o.status
        HAVING count(t.id) <> 1 OR count(t.id) FILTER (WHERE {_SAYS_THE_SAME}) <> 1""",
    ),
    Question(
        f"every end of a purchase has its event (of the newest {NEWEST:,})",
        f"SELECT count(*) FROM ({_PURCHASES}) AS ended",
        f"""
        SELECT p.id || ' is ' || p.status || '; of its events ' || count(t.id) || ' say so'
          FROM ({_PURCHASES}) AS p
          LEFT JOIN event t ON t.agent_id = p.agent_id AND t.type = 'purchase.' || p.status
                           AND t.created_at >= p.created_at AND substr(t.data, 8, 30) = p.id
         GROUP BY p.id, p.status HAVING count(t.id) <> 1""",
    ),
    Question(
        f"every kept answer stands for something that was done once (of the newest {NEWEST:,})",
        f"SELECT count(*) FROM ({_ANSWERS}) AS answer",
        f"""
        WITH answer AS (
          SELECT a.*, substring(encode(substr(a.body, 1, 50), 'escape')
                                FROM '"data":."id":"([a-z]+_[0-9a-z]{{26}})"') AS made
            FROM ({_ANSWERS}) AS a),
        counted AS (
          SELECT *, CASE WHEN status = 201 AND made ~ '^(wdr|dep)_'
                         THEN count(*) OVER (PARTITION BY realm_id, made, status) END AS times
            FROM answer)
        SELECT 'the answer to ' || route || ' with the key ' || key || ' stands for '
               || coalesce(made, 'nothing')
          FROM counted c
         WHERE times > 1
            OR CASE left(made, 4)
                 WHEN 'wdr_' THEN NOT EXISTS (
                   SELECT FROM withdrawal w WHERE w.id = made AND w.realm_id = c.realm_id)
                 WHEN 'dep_' THEN NOT EXISTS (
                   SELECT FROM deposit d WHERE d.id = made AND d.realm_id = c.realm_id)
                 ELSE false END""",
    ),
)
SEALS: Final = "the seals fit the journal"


async def audit(
    db: Database, progress: Callable[[str], None], *, everything: bool = False
) -> list[Finding]:
    """Asks every question, with `everything` about all rows. `progress` is called with each one
    before it is asked."""
    async with db.snapshot() as tx:
        findings: list[Finding] = []
        for question in map(_of_all, QUESTIONS) if everything else QUESTIONS:
            progress(question.text)
            findings.append(await _ask(tx, question))
        progress(SEALS)
        findings.append(await _check_seals(tx))
        return findings


def _of_all(question: Question) -> Question:
    return replace(
        question,
        text=question.text.partition(" (of the newest")[0],
        count=question.count.replace(_LIMIT, ""),
        differs=question.differs.replace(_LIMIT, ""),
    )


async def _ask(tx: Tx, question: Question) -> Finding:
    finding = Finding(question.text, await tx.fetchval(question.count, timeout=_QUESTION_SECONDS))
    rows: list[Any] = await tx.fetch(
        f"SELECT line, count(*) OVER () AS total FROM ({question.differs}) AS d (line)"
        f" LIMIT {MAX_NAMED}",
        timeout=_QUESTION_SECONDS,
    )
    if rows:
        finding.differences = [row["line"] for row in rows]
        finding.difference_count = rows[0]["total"]
    return finding


async def _check_seals(tx: Tx) -> Finding:
    """Each link is computed again from the transfers it covers."""
    finding = Finding(SEALS)
    number, start, previous = 0, 0, seal.GENESIS
    while True:
        links = await store.seals_after(tx, number, _SEALS_AT_ONCE)
        for found, below, count, hash_ in links:
            transfers = await store.transfers_between(tx, start, below, None)
            fits = (
                found == number + 1
                and len(transfers) == count
                and seal.link(previous, transfers) == hash_
            )
            if not fits:
                finding.difference_count += 1
                if len(finding.differences) < MAX_NAMED:
                    finding.differences.append(
                        f"seal {found} covers {count} transfers and does not fit the"
                        f" {len(transfers)} that are there"
                    )
            finding.checked += len(transfers)
            number, start, previous = found, below, hash_
        if len(links) < _SEALS_AT_ONCE:
            return finding
