-- Stopping a wallet that is short, and releasing it, may raise for one wallet as well.
ALTER TABLE quarantine DROP CONSTRAINT quarantine_duty_check;
ALTER TABLE quarantine ADD CONSTRAINT quarantine_duty_check
  CHECK (duty IN ('settle', 'expire', 'deposit', 'stop'));

-- What one worker at a time does: the one that holds the lease, until it ends or is given up.
CREATE TABLE lease (
  name   text PRIMARY KEY,
  holder text NOT NULL,
  until  timestamptz NOT NULL
);

-- How the sweep finds the wallets that it compares every time: those that are held, and those that
-- spent or were funded lately.
CREATE INDEX wallet_held ON wallet (agent_id) WHERE held;
CREATE INDEX usage_by_day ON usage (window_start);
CREATE INDEX deposit_by_age ON deposit USING brin (created_at);
