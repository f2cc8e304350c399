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
