-- A spend that comes alone is written by statements about one row each. To begin the one statement
-- that writes a batch, of seven parts with their joins, took PostgreSQL longer than to write it.

-- What writes a batch (`0003`), and what its comment says.
ALTER FUNCTION write_spends(
  text, timestamptz, integer, text[], touched_wallet[], decided_spend[], text, touched_meter[],
  use_of_meter[])
  RENAME TO write_batch;

-- Writes decided spends; what it takes, returns and promises is what `write_batch` does. One that
-- comes alone, unlocked and not metered, is written here: the same guard and the same rows. The
-- guard is there twice, since a function for it would not be inlined as well as it stands.
CREATE FUNCTION write_spends(
  decided_in text, locked_at timestamptz, approval_seconds integer,
  agent_ids text[], wallets touched_wallet[], spends decided_spend[],
  purchase text, meters touched_meter[], uses use_of_meter[])
RETURNS TABLE (
  agent_id id, at timestamptz, credits_posted bigint, debits_posted bigint, debits_pending bigint,
  decisions_until bigint, transfers_until bigint, spent_micros bigint, lamports_until bigint,
  pending_until integer, meters_until text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  g touched_wallet;
  d decided_spend;
  read_at timestamptz;
  -- The wallet as it was before.
  was record;
BEGIN
  IF cardinality(spends) <> 1 OR locked_at IS NOT NULL OR uses IS NOT NULL THEN
    RETURN QUERY SELECT * FROM write_batch(decided_in, locked_at, approval_seconds, agent_ids,
                                           wallets, spends, purchase, meters, uses);
    RETURN;
  END IF;
  -- Asked beforehand, since to call it takes longer.
  IF current_setting('transaction_isolation') <> 'read committed'
     OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM durably();
  END IF;
  g := wallets[1];
  d := spends[1];
  PERFORM FROM wallet w WHERE w.agent_id = g.agent_id FOR NO KEY UPDATE;
  IF decided_in <> server_life() THEN
    RETURN;
  END IF;
  read_at := moment();
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
    FROM realm r
   WHERE w.agent_id = g.agent_id AND w.realm_id = g.realm_id AND w.rules = g.rules
     AND r.id = g.realm_id AND r.rules = g.realm_rules
     AND w.windows_at >= g.hour AND w.windows_at < g.hour + interval '1 hour'
     AND read_at < g.hour + interval '1 hour'
     AND w.day_micros BETWEEN g.spent_least AND g.spent_most
     AND w.credits_posted - w.debits_posted - w.debits_pending
         BETWEEN g.available_least AND g.available_most
     AND w.day_lamports BETWEEN g.lamports_least AND g.lamports_most
     AND w.pending_count BETWEEN g.pending_least AND g.pending_most
     AND g.bounds IS NULL
  RETURNING r.mode, w.windows_at AS at, w.credits_posted::bigint, w.debits_posted::bigint,
            w.debits_pending - g.micros AS debits_pending,
            w.transfers - g.moves AS transfers, w.decisions - g.decisions AS decisions,
            w.day_micros - g.micros AS spent_micros, w.day_lamports - g.lamports AS lamports,
            (w.pending_count - g.pendings)::integer AS pendings
       INTO was;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, memo, metadata,
                     network, created_by, created_at, purchase_id, budget_id, idempotency_key,
                     fingerprint, status, reject_code, updated_at, verdict, terms, used,
                     policy_version, decision_number, expires_at, network_lamports)
  VALUES (d.id, g.realm_id, g.agent_id, d.amount, d.recipient, d.pay_to, d.memo, d.metadata,
          d.network, d.created_by, was.at, purchase, g.budget_id, d.key,
          decode(d.fingerprint, 'hex'), d.verdict, d.reject_code, was.at, d.verdict, d.terms,
          ARRAY[was.spent_micros, was.credits_posted - was.debits_posted - was.debits_pending,
                was.lamports, d.cost, was.pendings, was.transfers],
          d.policy_version, was.decisions + 1,
          CASE WHEN d.verdict = 'pending' THEN was.at + make_interval(secs => approval_seconds) END,
          CASE WHEN d.verdict = 'rejected' THEN 0 ELSE d.cost END);
  IF d.verdict <> 'rejected' THEN
    INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros, credits_posted_after,
                          debits_posted_after, debits_pending_after, created_at)
    VALUES (g.agent_id, was.transfers + 1, 'reserve', d.id, d.amount, was.credits_posted,
            was.debits_posted, was.debits_pending + d.amount, was.at);
  END IF;
  IF d.verdict = 'approved' AND purchase IS NULL THEN
    INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,
                         created_at)
    VALUES (d.id, was.mode, g.realm_id, g.agent_id, d.amount, d.pay_to, clock_timestamp(), was.at);
  END IF;
  INSERT INTO total_delta (realm_id, agent_id, day, recipient, spend_count, rejected_count,
                           settled_micros)
  VALUES (g.realm_id, g.agent_id, (was.at AT TIME ZONE 'UTC')::date,
          CASE WHEN d.verdict = 'rejected' THEN '' ELSE d.recipient END, 1,
          (d.verdict = 'rejected')::int, 0);
  INSERT INTO delivery (id, webhook_id, event_id, created_at, next_attempt_at)
  SELECT 'dlv_' || substr(d.id, 5, 10) || left(md5(d.id || h.id), 16), h.id,
         'evt_' || substr(d.id, 5), was.at, clock_timestamp()
    FROM webhook h
   WHERE h.realm_id = g.realm_id AND h.status = 'enabled'
     AND h.events && ARRAY['*', 'transaction.' || d.verdict];
  RETURN QUERY SELECT g.agent_id::id, was.at::timestamptz, was.credits_posted, was.debits_posted,
                      was.debits_pending, was.decisions, was.transfers, was.spent_micros,
                      was.lamports, was.pendings, NULL::text[];
END $$;
