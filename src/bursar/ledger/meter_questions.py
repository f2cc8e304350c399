"""What `bursar audit` asks about limits and budgets: whether meters counted what was spent, and
whether spends were judged on what they had counted."""

from typing import Final

from bursar.ledger.question import Question

# The meters beside its wallet's that count a spend, in the order of the numbers that it keeps of
# them: limits of its recipient, which its terms name, then its budget and those above.
_METERED: Final = """
RECURSIVE above AS (
  SELECT id AS lowest, id, parent_id, 1 AS place FROM budget
  UNION
  SELECT a.lowest, p.id, p.parent_id, a.place + 1
    FROM above a JOIN budget p ON p.id = a.parent_id WHERE a.place < 4),
metered AS MATERIALIZED (
  SELECT *, terms::jsonb -> 13 AS limits, terms::jsonb -> 14 AS budgets,
         (SELECT count(l ->> 4) FROM jsonb_array_elements(terms::jsonb -> 13) AS l) AS of_recipient
    FROM spend WHERE cardinality(used) > 6 OR budget_id IS NOT NULL),
counted AS MATERIALIZED (
  SELECT s.id, s.amount_micros, s.created_at, s.verdict, s.status, s.used,
         l.value ->> 0 AS meter_id, row_number() OVER (PARTITION BY s.id ORDER BY l.place) AS place
    FROM metered s CROSS JOIN jsonb_array_elements(s.limits) WITH ORDINALITY AS l (value, place)
   WHERE l.value ->> 4 IS NOT NULL
  UNION ALL
  SELECT s.id, s.amount_micros, s.created_at, s.verdict, s.status, s.used, a.id,
         s.of_recipient + a.place
    FROM metered s JOIN above a ON a.lowest = s.budget_id)"""


OF_METERS: Final = (
    Question(
        "every meter counts the spends that are its own, in each window that is open",
        "SELECT count(*) FROM meter",
        f"""
        WITH {_METERED}
        SELECT m.id || ' in the ' || k.kind || ' of ' || coalesce(k.start, 'epoch') || ' used '
               || k.micros || ' in ' || k.spends || ' spends; its spends say '
               || coalesce(sum(c.amount_micros), 0) || ' and ' || count(c.id)
          FROM meter m CROSS JOIN LATERAL (VALUES
            ('hour', hour_micros, hour_count, date_trunc('hour', windows_at, 'UTC')),
            ('day', day_micros, day_count, date_trunc('day', windows_at, 'UTC')),
            ('week', week_micros, week_count, date_trunc('week', windows_at, 'UTC')),
            ('month', month_micros, month_count, date_trunc('month', windows_at, 'UTC')),
            ('life', life_micros, life_count, m.created_at)) AS k (kind, micros, spends, start)
          LEFT JOIN counted c ON c.meter_id = m.id AND c.status <> 'rejected'
                             AND (k.kind = 'life' OR k.start IS NULL OR c.created_at >= k.start)
         GROUP BY m.id, k.kind, k.start, k.micros, k.spends
        HAVING k.micros <> coalesce(sum(c.amount_micros), 0) OR k.spends <> count(c.id)
        UNION ALL
        SELECT coalesce(m.id, c.meter_id) || ' counted ' || coalesce(m.decisions, 0)
               || ' decisions and releases; there are ' || count(*)
          FROM counted c LEFT JOIN meter m ON m.id = c.meter_id
         GROUP BY m.id, c.meter_id
        HAVING coalesce(m.decisions, 0)
               < count(*) + count(*) FILTER (WHERE c.verdict <> c.status AND c.status = 'rejected')
        UNION ALL
        SELECT s.id || ' was judged by other budgets than those above it' FROM metered s
         WHERE ARRAY(SELECT a.id::text FROM above a WHERE a.lowest = s.budget_id ORDER BY a.place)
               <> ARRAY(SELECT b.value ->> 0 FROM jsonb_array_elements(s.budgets)
                               WITH ORDINALITY AS b (value, place) ORDER BY b.place)""",
    ),
    Question(
        "every spend was judged on what its meters had counted then",
        "SELECT count(*) FROM spend WHERE cardinality(used) > 6",
        # A meter numbers its decisions and releases, and a release leaves nothing but its number:
        # between two decisions as much may have been given back as numbers are missing. So may
        # refusals that are forgotten.
        f"""
        WITH {_METERED},
        kept AS (
          SELECT *, used[11 * place + 7] AS number, used[11 * place + 16] AS micros,
                 used[11 * place + 17] AS spends
            FROM counted),
        followed AS (
          SELECT *, lag(number, 1, -1::bigint) OVER w AS number_before,
                 lag(micros + CASE verdict WHEN 'rejected' THEN 0 ELSE amount_micros END,
                     1, 0::bigint) OVER w AS micros_before,
                 lag(spends + (verdict <> 'rejected')::int, 1, 0::bigint) OVER w AS spends_before
            FROM kept WINDOW w AS (PARTITION BY meter_id ORDER BY number))
        SELECT f.id || ' was judged on ' || coalesce(f.micros || ' in ' || f.spends, 'no')
               || ' spends of ' || f.meter_id || '; what it counted before was '
               || f.micros_before || ' in ' || f.spends_before
          FROM followed f JOIN meter m ON m.id = f.meter_id
         WHERE f.number IS NULL OR f.number >= m.decisions OR f.number <= f.number_before
            OR f.spends NOT BETWEEN f.spends_before - (f.number - f.number_before - 1)
                                AND f.spends_before
            OR (f.spends = f.spends_before) <> (f.micros = f.micros_before)
            OR f.micros > f.micros_before
        UNION ALL
        SELECT id || ' is decision ' || decision_number || ' of its wallet, judged after '
               || used[7]
          FROM metered WHERE used[7] <> decision_number - 1""",
    ),
    Question(
        "every spend kept to the limits and budgets that it was decided under",
        "SELECT count(*) FROM spend WHERE cardinality(used) > 6",
        f"""
        WITH {_METERED},
        applied AS (
          SELECT s.id, s.amount_micros, s.verdict, s.reject_code, s.used,
                 'limit_exceeded' AS code, l.value AS own,
                 CASE WHEN l.value ->> 4 IS NULL THEN 0
                      ELSE count(l.value ->> 4) OVER (PARTITION BY s.id ORDER BY l.place)
                 END AS place
            FROM metered s
           CROSS JOIN jsonb_array_elements(s.limits) WITH ORDINALITY AS l (value, place)
          UNION ALL
          SELECT s.id, s.amount_micros, s.verdict, s.reject_code, s.used,
                 'budget_exceeded', l.value, s.of_recipient + b.place
            FROM metered s
           CROSS JOIN jsonb_array_elements(s.budgets) WITH ORDINALITY AS b (value, place)
           CROSS JOIN jsonb_array_elements(b.value -> 2) AS l),
        judged AS (
          SELECT *, coalesce(used[at] + amount_micros > (own ->> 2)::bigint, false)
                    OR coalesce(used[at + 1] >= (own ->> 3)::bigint, false)
                    OR used[at + 1] IS NULL AS beyond
            FROM (SELECT *, 11 * place + 6 + 2 * array_position(
                            ARRAY['hour', 'day', 'week', 'month', 'lifetime'], own ->> 1) AS at
                    FROM applied) a)
        SELECT id || ' is ' || verdict || ', beyond ' || (own ->> 0) FROM judged
         WHERE beyond AND verdict <> 'rejected'
        UNION ALL
        SELECT s.id || ' was refused with ' || s.reject_code || ', and would have passed'
          FROM metered s LEFT JOIN judged j ON j.id = s.id AND j.code = s.reject_code
         WHERE s.reject_code IN ('limit_exceeded', 'budget_exceeded')
         GROUP BY s.id, s.reject_code HAVING NOT coalesce(bool_or(j.beyond), false)""",
    ),
)
