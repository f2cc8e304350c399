-- That the workers live and move, for `/readyz` and `bursar doctor`: a row for each duty, of one
-- mode or of all. `beat_at` says that a worker has the duty, `moved_at` when it last went well.
CREATE TABLE heartbeat (
  mode             text NOT NULL CHECK (mode IN ('test', 'live', 'all')),
  duty             text NOT NULL,
  beat_at          timestamptz NOT NULL,
  moved_at         timestamptz NOT NULL,
  patience_seconds double precision NOT NULL CHECK (patience_seconds > 0),
  -- The kind of error that the last round ended in; null when it went well.
  problem          text,
  PRIMARY KEY (mode, duty)
);

-- Wallets whose commits raise, by the duty that could not be done: each is tried alone and rarely,
-- so that it stops no other. No foreign key, because the wallet's row may be what is broken.
CREATE TABLE quarantine (
  agent_id    id NOT NULL,
  duty        text NOT NULL CHECK (duty IN ('settle', 'expire', 'deposit')),
  problem     text NOT NULL,
  tries       integer NOT NULL DEFAULT 1 CHECK (tries >= 1),
  since       timestamptz(3) NOT NULL,
  next_try_at timestamptz NOT NULL,
  PRIMARY KEY (agent_id, duty)
);
