-- What a worker claims comes with what signs it, which was a round trip of its own. Otherwise the
-- function is that of `0001_initial.sql`, where its rules are told, but for how it finds rows.
--
-- What is under way to each webhook is counted by an index that a claim enters and a result leaves.
-- A bitmap scan, which the planner likes as long as it knows nothing of the table, never marks the
-- entries that are dead: each round read again what all rounds since the last vacuum had claimed. A
-- plain scan reads past them once.
CREATE TYPE sealed_secret AS (owner text, master_version integer, sealed bytea);

DROP FUNCTION exchange_deliveries;
CREATE FUNCTION exchange_deliveries(
  done_ids text[], done_leases timestamptz[], done_statuses text[], done_waits float8[],
  done_attempts text[], most integer, most_failing integer, per_webhook integer,
  lease_seconds float8)
RETURNS TABLE (
  id text, lease timestamptz, attempt_count integer, webhook_id text, url text, failing boolean,
  event_id text, type text, agent_id text, data text, created_at timestamptz, mode text,
  secrets sealed_secret[])
LANGUAGE plpgsql SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
  read_at timestamptz;
BEGIN
  -- A claim or a result that a crash of the database forgets only means one more delivery.
  PERFORM set_config('synchronous_commit', 'off', true);
  IF cardinality(done_ids) > 0 THEN
    -- What somebody else took meanwhile, because the lease ended, is theirs to record.
    UPDATE delivery d
       SET status = r.status, attempts = d.attempts || r.attempt::jsonb,
           attempt_count = d.attempt_count + 1, leased_until = NULL,
           next_attempt_at = CASE WHEN r.status = 'pending'
                                  THEN clock_timestamp() + make_interval(secs => r.wait) END
      FROM unnest(done_ids, done_leases, done_statuses, done_waits, done_attempts)
        AS r (id, lease, status, wait, attempt)
     WHERE d.id = r.id AND d.leased_until = r.lease;
    -- In id order, so that two workers cannot deadlock.
    UPDATE webhook SET failing_since = NULL WHERE id IN (
      SELECT w.id FROM webhook w WHERE w.failing_since IS NOT NULL AND w.id IN (
        SELECT d.webhook_id FROM delivery d
         WHERE d.id = ANY (done_ids) AND d.status = 'delivered')
       ORDER BY w.id FOR NO KEY UPDATE);
  END IF;
  IF most <= 0 THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(17485);
  read_at := clock_timestamp();
  RETURN QUERY
    WITH RECURSIVE queue (webhook_id) AS (
      (SELECT d.webhook_id FROM delivery d WHERE d.status = 'pending'
        ORDER BY d.webhook_id LIMIT 1)
      UNION ALL
      SELECT (SELECT d.webhook_id FROM delivery d
               WHERE d.status = 'pending' AND d.webhook_id > q.webhook_id
               ORDER BY d.webhook_id LIMIT 1)
        FROM queue q WHERE q.webhook_id IS NOT NULL),
    open AS MATERIALIZED (
      SELECT w.id, w.url, r.account_id, w.failing_since IS NOT NULL AS failing, l.leased,
             CASE WHEN w.failing_since IS NULL THEN per_webhook ELSE 1 END - l.leased AS room
        FROM queue q JOIN webhook w ON w.id = q.webhook_id AND w.status = 'enabled'
        JOIN realm r ON r.id = w.realm_id
       CROSS JOIN LATERAL (SELECT count(*) AS leased FROM delivery l
                            WHERE l.webhook_id = w.id AND l.leased_until > read_at) l),
    under_way AS (
      SELECT o.*, sum(o.leased) OVER (PARTITION BY o.account_id) AS of_account,
             sum(o.leased) OVER (PARTITION BY o.account_id, o.failing) AS of_kind
        FROM open o),
    due AS (
      SELECT h.id AS webhook_id, h.url, h.account_id, h.failing, h.of_account, d.id, d.turn,
             d.next_attempt_at, h.of_kind + row_number() OVER (
               PARTITION BY h.account_id, h.failing ORDER BY d.turn, d.next_attempt_at) AS share
        FROM under_way h CROSS JOIN LATERAL (
          SELECT p.id, p.next_attempt_at, row_number() OVER (ORDER BY p.next_attempt_at) AS turn
            FROM (SELECT e.id, e.next_attempt_at FROM delivery e
                   WHERE e.webhook_id = h.id AND e.status = 'pending'
                     AND e.next_attempt_at <= read_at
                     AND (e.leased_until IS NULL OR e.leased_until <= read_at)
                   ORDER BY e.next_attempt_at LIMIT greatest(h.room, 0)) p) d),
    of_kind AS (
      SELECT due.*, row_number() OVER (
               PARTITION BY due.failing ORDER BY due.share, due.next_attempt_at) AS place
        FROM due),
    fit AS (
      SELECT k.webhook_id, k.url, k.failing, k.id, k.next_attempt_at,
             k.of_account + row_number() OVER (
               PARTITION BY k.account_id ORDER BY k.turn, k.next_attempt_at) AS share
        FROM of_kind k WHERE NOT k.failing OR k.share <= most_failing - k.place + 1),
    placed AS (
      SELECT fit.*, row_number() OVER (ORDER BY fit.share, fit.next_attempt_at) AS place FROM fit),
    taken AS (
      SELECT * FROM placed p WHERE p.share <= most - p.place + 1),
    claimed AS (
    UPDATE delivery d SET leased_until = clock_timestamp() + make_interval(secs => lease_seconds)
      FROM taken t
     WHERE d.id = t.id
    RETURNING d.id, d.leased_until, d.attempt_count, t.webhook_id, t.url, t.failing, d.event_id)
    SELECT c.id::text, c.leased_until::timestamptz, c.attempt_count, c.webhook_id::text, c.url,
           c.failing, c.event_id::text, e.type, e.agent_id::text, e.data,
           e.created_at::timestamptz, r.mode::text,
           ARRAY(SELECT ROW(s.owner, s.master_version, s.sealed)::sealed_secret
                   FROM webhook_secret s
                  WHERE s.webhook_id = c.webhook_id
                    AND (s.signs_until IS NULL OR s.signs_until > clock_timestamp())
                  ORDER BY s.number DESC)
      FROM claimed c
      JOIN webhook h ON h.id = c.webhook_id
      JOIN realm r ON r.id = h.realm_id
      LEFT JOIN event e ON e.id = c.event_id;
END $$;
