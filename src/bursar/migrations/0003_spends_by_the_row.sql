-- A batch of spends is handed over by the row, and no longer by the column: to read forty arrays
-- side by side took PostgreSQL longer than to write a spend. A row is text whose fields have no
-- names, so a field more would break older nodes: it needs types and a function of its own.

-- A wallet of a batch: what it is decided by, what the batch adds to it, and between which values
-- of what it has the decisions stand. The last two are of batches that are metered.
CREATE TYPE touched_wallet AS (
  agent_id        text,
  realm_id        integer,
  rules           bigint,
  realm_rules     bigint,
  hour            timestamptz,
  decisions       integer,
  moves           integer,
  micros          bigint,
  lamports        bigint,
  pendings        integer,
  cap_micros      bigint,
  cap_lamports    bigint,
  spent_least     bigint,
  spent_most      bigint,
  available_least bigint,
  available_most  bigint,
  lamports_least  bigint,
  lamports_most   bigint,
  pending_least   integer,
  pending_most    integer,
  bounds          bigint[],
  budget_id       text
);
-- A spend of it: what was asked and decided, and what the batch had added to its wallet before it.
CREATE TYPE decided_spend AS (
  id               text,
  agent_id         text,
  amount           bigint,
  recipient        text,
  pay_to           text,
  verdict          text,
  reject_code      text,
  memo             text,
  metadata         text,
  policy_version   integer,
  terms            text,
  network          text,
  created_by       text,
  cost             bigint,
  decisions_before integer,
  moves_before     integer,
  micros_before    bigint,
  lamports_before  bigint,
  pendings_before  integer,
  key              text,
  fingerprint      text
);
-- A meter that counts some of them, with its bounds as in `within`.
CREATE TYPE touched_meter AS (
  id        text,
  rules     bigint,
  decisions integer,
  micros    bigint,
  moves     integer,
  bounds    bigint[]
);
-- Which spend a meter counts, by its place in the batch, and what the batch had added to the meter
-- before it.
CREATE TYPE use_of_meter AS (
  spend     integer,
  meter_id  text,
  decisions integer,
  micros    bigint,
  moves     integer
);

-- By spend of a batch, the numbers of its meters that it is judged on: the wallet's, then those of
-- its uses. The caller has locked wallets and meters, and has written nothing yet. In plpgsql,
-- which keeps its plan.
CREATE FUNCTION meters_of(spends decided_spend[], uses use_of_meter[])
RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
  SELECT array_agg(
           '{' || concat_ws(',',
             numbers_after(w.decisions, w.hour_micros, w.hour_count, w.day_micros, w.day_count,
                           w.week_micros, w.week_count, w.month_micros, w.month_count,
                           w.life_micros, w.life_count, d.decisions_before, d.micros_before,
                           d.moves_before),
             u.numbers) || '}' ORDER BY d.ordinality)
    FROM unnest(spends) WITH ORDINALITY AS d
    JOIN wallet w ON w.agent_id = d.agent_id
    LEFT JOIN (
      SELECT s.spend, string_agg(
               numbers_after(m.decisions, m.hour_micros, m.hour_count, m.day_micros, m.day_count,
                             m.week_micros, m.week_count, m.month_micros, m.month_count,
                             m.life_micros, m.life_count, s.decisions, s.micros, s.moves),
               ',' ORDER BY s.ordinality) AS numbers
        FROM unnest(uses) WITH ORDINALITY AS s
        JOIN meter m ON m.id = s.meter_id
       GROUP BY s.spend) u ON u.spend = d.ordinality);
END $$;

-- Writes a batch of decided spends: each wallet whose guard holds, and of the others nothing. It is
-- a transaction of its own, or the last statement of one that closed the windows of the wallets,
-- and so locked them, at `locked_at`.
--
-- The guard of a wallet: the rules are those it was decided by, the windows those it was decided
-- in, and what was used lies where every decision of the batch stays what it is. `decided_in` is
-- the server's life that the facts were read in. Under the locks only what the locks do not hold
-- still can differ: the realm's rules, which may have changed on either side of the decision, and
-- the hour, which is that of `locked_at`. So the guard always holds there.
--
-- Limits: a wallet that has some is guarded by its windows too (`bounds`, least and most of each
-- number of a meter but the first). Meters are locked after the wallets, guarded alike, and
-- shared, so that a batch with meters is written whole or not at all. `uses` says which spends they
-- count, and what the batch had added to them before each.
--
-- What a spend keeps of the numbers it was judged on (`used`, in the order of the engine's `Used`),
-- and what its transfer says of the wallet, follows from the values found here. Of a metered batch
-- the numbers of the meters are returned with one of its wallets, in the order of its spends: a
-- second look for them could fail after the commit.
CREATE FUNCTION write_spends(
  decided_in text, locked_at timestamptz, approval_seconds integer,
  -- The ids of the wallets again, to lock them by.
  agent_ids text[], wallets touched_wallet[], spends decided_spend[],
  -- Of the one spend of the batch, where it pays for a purchase.
  purchase text,
  -- Null unless the batch is metered. Where nothing but its wallets counts it, `meters` is null
  -- too, and `uses` empty.
  meters touched_meter[], uses use_of_meter[])
RETURNS TABLE (
  agent_id id, at timestamptz, credits_posted bigint, debits_posted bigint, debits_pending bigint,
  decisions_until bigint, transfers_until bigint, spent_micros bigint, lamports_until bigint,
  pending_until integer, meters_until text[])
-- The plan is the same for every batch, and to make it takes longer than to write a spend.
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  meter_ids text[];
  is_metered boolean := uses IS NOT NULL;
  read_at timestamptz;
  numbers text[];
  written_count bigint;
BEGIN
  PERFORM durably();
  IF locked_at IS NULL THEN
    PERFORM FROM wallet w WHERE w.agent_id = ANY (agent_ids) ORDER BY w.agent_id FOR NO KEY UPDATE;
    IF decided_in <> server_life() THEN
      RETURN;
    END IF;
  END IF;
  read_at := coalesce(locked_at, moment());
  IF meters IS NOT NULL THEN
    meter_ids := ARRAY(SELECT g.id FROM unnest(meters) g);
    IF locked_at IS NULL THEN
      PERFORM FROM meter m WHERE m.id = ANY (meter_ids) ORDER BY m.id FOR NO KEY UPDATE;
    END IF;
    -- One moment for all, no earlier than what any of them has reached.
    SELECT greatest(read_at, max(o.windows_at)) INTO read_at
      FROM (SELECT m.windows_at FROM meter m WHERE m.id = ANY (meter_ids)
            UNION ALL SELECT w.windows_at FROM wallet w WHERE w.agent_id = ANY (agent_ids)) o;
    PERFORM FROM unnest(meters) g
      LEFT JOIN meter m ON m.id = g.id AND m.rules = g.rules
       AND date_trunc('hour', m.windows_at, 'UTC') = date_trunc('hour', read_at, 'UTC')
       AND within(g.bounds, m.hour_micros, m.hour_count, m.day_micros, m.day_count,
                  m.week_micros, m.week_count, m.month_micros, m.month_count, m.life_micros,
                  m.life_count)
     WHERE m.id IS NULL;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF is_metered THEN
    numbers := meters_of(spends, uses);
  END IF;
  RETURN QUERY
  WITH written AS (
    UPDATE wallet w
       SET debits_pending = w.debits_pending + g.micros, transfers = w.transfers + g.moves,
           decisions = w.decisions + g.decisions, pending_count = w.pending_count + g.pendings,
           windows_at = greatest(w.windows_at, read_at),
           hour_micros = w.hour_micros + g.micros, hour_count = w.hour_count + g.moves,
           day_micros = w.day_micros + g.micros, day_count = w.day_count + g.moves,
           week_micros = w.week_micros + g.micros, week_count = w.week_count + g.moves,
           month_micros = w.month_micros + g.micros, month_count = w.month_count + g.moves,
           life_micros = w.life_micros + g.micros, life_count = w.life_count + g.moves,
           day_cap_micros = CASE WHEN g.moves > 0 THEN g.cap_micros ELSE w.day_cap_micros END,
           day_lamports = w.day_lamports + g.lamports,
           day_cap_lamports = CASE WHEN g.moves > 0 THEN g.cap_lamports ELSE w.day_cap_lamports END
      FROM unnest(wallets) g JOIN realm r ON r.id = g.realm_id
     WHERE w.agent_id = g.agent_id AND w.realm_id = g.realm_id AND w.rules = g.rules
       AND (r.rules = g.realm_rules OR locked_at IS NOT NULL)
       AND w.windows_at >= g.hour AND w.windows_at < g.hour + interval '1 hour'
       AND read_at < g.hour + interval '1 hour'
       AND w.day_micros BETWEEN g.spent_least AND g.spent_most
       AND w.credits_posted - w.debits_posted - w.debits_pending
           BETWEEN g.available_least AND g.available_most
       AND w.day_lamports BETWEEN g.lamports_least AND g.lamports_most
       AND w.pending_count BETWEEN g.pending_least AND g.pending_most
       AND (g.bounds IS NULL
            OR within(g.bounds, w.hour_micros, w.hour_count, w.day_micros, w.day_count,
                      w.week_micros, w.week_count, w.month_micros, w.month_count, w.life_micros,
                      w.life_count))
    RETURNING w.agent_id, w.realm_id, r.mode, w.windows_at AS at, g.budget_id,
              w.credits_posted::bigint, w.debits_posted::bigint,
              w.debits_pending - g.micros AS debits_pending,
              w.transfers - g.moves AS transfers, w.decisions - g.decisions AS decisions,
              w.day_micros - g.micros AS spent_micros, w.day_lamports - g.lamports AS lamports,
              (w.pending_count - g.pendings)::integer AS pendings
  ), decided AS (
    SELECT d.*, w.realm_id, w.mode, w.at, w.budget_id, w.credits_posted, w.debits_posted,
           w.decisions + d.decisions_before + 1 AS decision_number,
           w.transfers + d.moves_before + 1 AS transfer_number,
           w.debits_pending + d.micros_before AS reserved,
           ARRAY[w.spent_micros + d.micros_before,
                 w.credits_posted - w.debits_posted - w.debits_pending - d.micros_before,
                 w.lamports + d.lamports_before, d.cost, w.pendings + d.pendings_before,
                 w.transfers + d.moves_before] || numbers[d.ordinality]::bigint[] AS used
      FROM unnest(spends) WITH ORDINALITY AS d
      JOIN written w ON w.agent_id = d.agent_id
  ), new_spends AS (
    INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, memo, metadata,
                       network, created_by, created_at, purchase_id, budget_id, idempotency_key,
                       fingerprint, status, reject_code, updated_at, verdict, terms, used,
                       policy_version, decision_number, expires_at, network_lamports)
    SELECT id, realm_id, agent_id, amount, recipient, pay_to, memo, metadata, network, created_by,
           at, purchase, budget_id, key, decode(fingerprint, 'hex'), verdict, reject_code, at,
           verdict, terms, used, policy_version, decision_number,
           CASE WHEN verdict = 'pending' THEN at + make_interval(secs => approval_seconds) END,
           CASE WHEN verdict = 'rejected' THEN 0 ELSE cost END
      FROM decided
  ), new_transfers AS (
    INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros, credits_posted_after,
                          debits_posted_after, debits_pending_after, created_at)
    SELECT agent_id, transfer_number, 'reserve', id, amount, credits_posted, debits_posted,
           reserved + amount, at
      FROM decided WHERE verdict <> 'rejected'
  ), new_payments AS (
    INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,
                         created_at)
    SELECT id, mode, realm_id, agent_id, amount, pay_to, clock_timestamp(), at
      FROM decided WHERE verdict = 'approved' AND purchase IS NULL
  ), new_totals AS (
    INSERT INTO total_delta (realm_id, agent_id, day, recipient, spend_count, rejected_count,
                             settled_micros)
    -- Refused ones count under one name: an agent could name a new one each time.
    SELECT realm_id, agent_id, (at AT TIME ZONE 'UTC')::date,
           CASE WHEN verdict = 'rejected' THEN '' ELSE recipient END, 1,
           (verdict = 'rejected')::int, 0
      FROM decided
  ), new_deliveries AS (
    -- The id of a delivery has the letters of the spend's time, then of what it joins.
    INSERT INTO delivery (id, webhook_id, event_id, created_at, next_attempt_at)
    SELECT 'dlv_' || substr(d.id, 5, 10) || left(md5(d.id || h.id), 16), h.id,
           'evt_' || substr(d.id, 5), d.at, clock_timestamp()
      FROM decided d JOIN webhook h ON h.realm_id = d.realm_id
     WHERE h.status = 'enabled' AND h.events && ARRAY['*', 'transaction.' || d.verdict]
  )
  SELECT w.agent_id, w.at::timestamptz, w.credits_posted, w.debits_posted, w.debits_pending,
         w.decisions, w.transfers, w.spent_micros, w.lamports, w.pendings,
         CASE WHEN is_metered AND w.agent_id = (SELECT min(f.agent_id) FROM written f)
              THEN numbers END
    FROM written w;
  IF meters IS NOT NULL THEN
    GET DIAGNOSTICS written_count = ROW_COUNT;
    IF written_count < cardinality(agent_ids) THEN
      -- What the meters count must be what was written, so nothing is.
      RAISE EXCEPTION 'a metered batch is written whole or not at all'
        USING ERRCODE = 'serialization_failure';
    END IF;
    UPDATE meter m
       SET windows_at = read_at, decisions = m.decisions + u.decisions,
           hour_micros = m.hour_micros + u.micros, hour_count = m.hour_count + u.moves,
           day_micros = m.day_micros + u.micros, day_count = m.day_count + u.moves,
           week_micros = m.week_micros + u.micros, week_count = m.week_count + u.moves,
           month_micros = m.month_micros + u.micros, month_count = m.month_count + u.moves,
           life_micros = m.life_micros + u.micros, life_count = m.life_count + u.moves
      FROM unnest(meters) u
     WHERE m.id = u.id;
  END IF;
END $$;
