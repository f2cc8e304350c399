-- Webhooks that deliver: secrets sealed under a master key that can be replaced, a queue that many
-- workers share fairly, and events that can be listed by type and by agent.

CREATE INDEX event_by_type ON event (realm_id, type, created_at DESC, id DESC);
CREATE INDEX event_by_agent ON event (agent_id, created_at DESC, id DESC);

-- Since when every attempt has failed; null while the last one went well.
ALTER TABLE webhook
  ADD COLUMN failing_since timestamptz(3),
  DROP COLUMN secret_sealed,
  DROP COLUMN previous_sealed,
  DROP COLUMN previous_until,
  ADD CHECK (cardinality(events) <= 100);

-- The secrets of a webhook: one in force, and those before it that still sign along. The owner is
-- bound into the seal, so that a sealed secret moved to another webhook does not open.
CREATE TABLE webhook_secret (
  owner          text COLLATE "C" PRIMARY KEY,
  webhook_id     id NOT NULL REFERENCES webhook ON DELETE CASCADE,
  number         integer NOT NULL CHECK (number >= 1),
  master_version integer NOT NULL REFERENCES master_key,
  sealed         bytea NOT NULL,
  -- null for the one in force
  signs_until    timestamptz(3),
  UNIQUE (webhook_id, number)
);
CREATE UNIQUE INDEX webhook_secret_in_force ON webhook_secret (webhook_id)
  WHERE signs_until IS NULL;
CREATE INDEX webhook_secret_by_master ON webhook_secret (master_version);

-- No foreign key to the webhook: it would make every event lock its webhooks' rows, and deleting a
-- webhook would delete months of deliveries in one request. Deliveries of a webhook that is gone
-- are never claimed; the worker sweeps them up.
ALTER TABLE delivery
  DROP CONSTRAINT delivery_webhook_id_fkey,
  ALTER COLUMN attempts DROP DEFAULT,
  ALTER COLUMN attempts TYPE jsonb USING attempts::jsonb,
  ALTER COLUMN attempts SET DEFAULT '[]',
  ADD CONSTRAINT only_pending_is_leased CHECK (leased_until IS NULL OR status = 'pending');
-- By webhook first: who claims jumps from webhook to webhook, so that a long queue of one hides
-- nobody else's.
DROP INDEX delivery_due;
CREATE INDEX delivery_due ON delivery (webhook_id, next_attempt_at) WHERE status = 'pending';
CREATE INDEX delivery_leased ON delivery (webhook_id) WHERE leased_until IS NOT NULL;

-- One round of a delivery worker in one round trip: records what became of its claims, then claims
-- up to `most` deliveries that are due, in turns: every webhook's first, then every second.
--
-- Jumps over the index from webhook to webhook, so a long queue of one costs no more than a short
-- one. No webhook has more than `per_webhook` under way, whoever claims: one claims at a time, and
-- counts in a statement that begins after the lock. A webhook that failed last gets one at a time,
-- and all such webhooks together `most_failing`.
CREATE FUNCTION exchange_deliveries(
  done_ids text[], done_leases timestamptz[], done_statuses text[], done_waits float8[],
  done_attempts text[], most integer, most_failing integer, per_webhook integer,
  lease_seconds float8)
RETURNS TABLE (
  id text, lease timestamptz, attempt_count integer, webhook_id text, url text, failing boolean,
  event_id text, type text, agent_id text, data text, created_at timestamptz, mode text)
LANGUAGE plpgsql AS $$
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
      SELECT w.id, w.url, w.failing_since IS NOT NULL AS failing,
             CASE WHEN w.failing_since IS NULL THEN per_webhook ELSE 1 END
               - (SELECT count(*) FROM delivery l
                   WHERE l.webhook_id = w.id AND l.leased_until > read_at) AS room
        FROM queue q JOIN webhook w ON w.id = q.webhook_id AND w.status = 'enabled'),
    due AS (
      SELECT o.id AS webhook_id, o.url, o.failing, d.id, d.turn, d.next_attempt_at,
             row_number() OVER (PARTITION BY o.failing ORDER BY d.turn, d.next_attempt_at) AS place
        FROM open o CROSS JOIN LATERAL (
          SELECT p.id, p.next_attempt_at, row_number() OVER (ORDER BY p.next_attempt_at) AS turn
            FROM (SELECT e.id, e.next_attempt_at FROM delivery e
                   WHERE e.webhook_id = o.id AND e.status = 'pending'
                     AND e.next_attempt_at <= read_at
                     AND (e.leased_until IS NULL OR e.leased_until <= read_at)
                   ORDER BY e.next_attempt_at LIMIT greatest(o.room, 0)) p) d),
    taken AS (
      SELECT * FROM due WHERE NOT due.failing OR due.place <= most_failing
       ORDER BY due.turn, due.next_attempt_at LIMIT most)
    UPDATE delivery d SET leased_until = clock_timestamp() + make_interval(secs => lease_seconds)
      FROM taken t, event e, realm r
     WHERE d.id = t.id AND e.id = d.event_id AND r.id = e.realm_id
    RETURNING d.id::text, d.leased_until::timestamptz, d.attempt_count, t.webhook_id::text, t.url,
              t.failing, e.id::text, e.type, e.agent_id::text, e.data, e.created_at::timestamptz,
              r.mode::text;
END $$;
