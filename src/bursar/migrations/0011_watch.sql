-- What the watch over the wallets remembers: transactions that nobody could read, how new the chain
-- must be to be believed, what it stopped by itself, and payments whose block had no time yet.

-- A transaction that mentions a wallet's token account and that no node showed so that it could be
-- read: perhaps a deposit. It is passed over, tried again ever more rarely, and shown to people.
-- Gone once it was read or credited by hand; dismissed when a person says that it brought nothing.
CREATE TABLE unread_deposit (
  signature     text NOT NULL,
  token_account text NOT NULL,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  problem       text NOT NULL CHECK (length(problem) <= 300),
  tries         integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
  noticed_at    timestamptz(3) NOT NULL DEFAULT moment(),
  next_try_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  dismissed_at  timestamptz(3),
  PRIMARY KEY (signature, token_account),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE INDEX unread_deposit_due ON unread_deposit (next_try_at) WHERE dismissed_at IS NULL;
CREATE INDEX unread_deposit_by_agent ON unread_deposit (agent_id) WHERE dismissed_at IS NULL;

-- The slot of the newest deposit that was credited: a node that is not as far says nothing of what
-- the wallet lacks.
ALTER TABLE wallet ADD COLUMN credited_slot bigint NOT NULL DEFAULT 0 CHECK (credited_slot >= 0);

-- A wallet that was stopped because every node said that money is missing. While the row is there,
-- the stop may turn out to be wrong and be undone; whoever enters a payment that was made outside
-- proves it right, and the row goes.
CREATE TABLE wallet_stop (
  agent_id       id PRIMARY KEY REFERENCES agent,
  -- The version that froze the policy; null when it was frozen before.
  policy_version integer,
  stopped_at     timestamptz(3) NOT NULL DEFAULT moment()
);

-- A block's time may be known later than the block; then it is filled in, and nothing else.
CREATE INDEX spend_without_time ON spend (settled_at)
  WHERE status = 'settled' AND block_time IS NULL;
CREATE INDEX withdrawal_without_time ON withdrawal (settled_at)
  WHERE status = 'settled' AND block_time IS NULL;
CREATE INDEX deposit_without_time ON deposit (credited_at)
  WHERE status = 'credited' AND block_time IS NULL;
DROP TRIGGER withdrawal_moves ON withdrawal;
CREATE TRIGGER withdrawal_moves BEFORE UPDATE ON withdrawal FOR EACH ROW
  WHEN (OLD.status <> 'pending'
        AND (OLD.block_time IS NOT NULL
             OR to_jsonb(NEW) - 'block_time' <> to_jsonb(OLD) - 'block_time')
        OR NEW.amount_micros <> OLD.amount_micros OR NEW.destination <> OLD.destination
        OR NEW.agent_id <> OLD.agent_id)
  EXECUTE FUNCTION refuse_move();
DROP TRIGGER deposit_is_credited_once ON deposit;
CREATE TRIGGER deposit_is_credited_once BEFORE UPDATE ON deposit FOR EACH ROW
  WHEN (OLD.status = 'credited'
        AND (OLD.block_time IS NOT NULL
             OR to_jsonb(NEW) - 'block_time' <> to_jsonb(OLD) - 'block_time')
        OR NEW.agent_id <> OLD.agent_id OR NEW.signature <> OLD.signature
        OR NEW.token_account <> OLD.token_account)
  EXECUTE FUNCTION refuse_move();
