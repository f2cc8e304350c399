-- Money in and out: withdrawals, deposits, and the payments on their way to the chain.

-- Held: the chain holds less than the ledger says, so nothing new is signed for this wallet.
ALTER TABLE wallet ADD COLUMN held boolean NOT NULL DEFAULT false;

-- pending -> settled | failed
CREATE TABLE withdrawal (
  id            id PRIMARY KEY,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  destination   text NOT NULL,
  status        text NOT NULL CHECK (status IN ('pending', 'settled', 'failed')),
  failure_code  text,
  memo          text CHECK (length(memo) <= 200),
  metadata      json NOT NULL DEFAULT '{}',
  network       text NOT NULL,
  created_by    text NOT NULL,
  created_at    timestamptz(3) NOT NULL,
  signature     text,
  block_time    bigint,
  fee_lamports  bigint CHECK (fee_lamports >= 0),
  settled_at    timestamptz(3),
  CONSTRAINT failed_has_a_code CHECK ((status = 'failed') = (failure_code IS NOT NULL)),
  CONSTRAINT settled_withdrawal_is_on_chain CHECK (
    (status = 'settled') = (signature IS NOT NULL)
    AND (status = 'settled') = (settled_at IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE INDEX withdrawal_by_agent ON withdrawal (agent_id, created_at DESC, id DESC);
CREATE INDEX withdrawal_to_settle ON withdrawal (created_at) WHERE status = 'pending';
CREATE TRIGGER withdrawal_moves BEFORE UPDATE ON withdrawal FOR EACH ROW
  WHEN (OLD.status <> 'pending' OR NEW.amount_micros <> OLD.amount_micros
        OR NEW.destination <> OLD.destination OR NEW.agent_id <> OLD.agent_id)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER withdrawal_stays BEFORE DELETE OR TRUNCATE ON withdrawal
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- One row per transfer into a wallet's token account, credited once: pending -> credited.
CREATE TABLE deposit (
  id            id PRIMARY KEY,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  token_account text NOT NULL,
  sender        text,
  signature     text NOT NULL,
  block_time    bigint,
  status        text NOT NULL CHECK (status IN ('pending', 'credited')),
  created_at    timestamptz(3) NOT NULL,
  credited_at   timestamptz(3),
  UNIQUE (signature, token_account),
  CONSTRAINT credited_has_a_date CHECK ((status = 'credited') = (credited_at IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE INDEX deposit_by_agent ON deposit (agent_id, created_at DESC, id DESC);
CREATE TRIGGER deposit_is_credited_once BEFORE UPDATE ON deposit FOR EACH ROW
  WHEN (OLD.status = 'credited') EXECUTE FUNCTION refuse_move();

-- How far the history of a wallet's token account has been read.
CREATE TABLE deposit_cursor (
  agent_id  id PRIMARY KEY,
  signature text NOT NULL
);

-- A spend or withdrawal on its way. waiting: nothing signed is alive; live: one attempt is.
CREATE TABLE payment (
  id            id PRIMARY KEY,
  mode          mode NOT NULL,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  destination   text NOT NULL,
  state         text NOT NULL DEFAULT 'waiting'
                CHECK (state IN ('waiting', 'live', 'settled', 'failed')),
  attempts      integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  -- Whoever works on it has it until then; afterwards it is anybody's.
  leased_until  timestamptz NOT NULL,
  problem       text,
  created_at    timestamptz(3) NOT NULL
);
CREATE INDEX payment_open ON payment (mode, created_at) WHERE state IN ('waiting', 'live');

-- Everything that was ever signed. Written and committed before it is sent.
--   live -> dead, when it provably never pays; live -> settled
CREATE TABLE submission (
  payment_id        id NOT NULL REFERENCES payment,
  attempt           integer NOT NULL CHECK (attempt >= 1),
  mode              mode NOT NULL,
  state             text NOT NULL CHECK (state IN ('live', 'dead', 'settled')),
  raw               bytea NOT NULL,
  signature         text NOT NULL UNIQUE,
  blockhash         text NOT NULL,
  last_valid_height bigint NOT NULL,
  signed_slot       bigint NOT NULL,
  signed_at         timestamptz(3) NOT NULL DEFAULT moment(),
  next_check_at     timestamptz NOT NULL,
  checks            integer NOT NULL DEFAULT 0,
  -- What a node said when it would not take it, if that can never change.
  refusal           text,
  in_doubt          boolean NOT NULL DEFAULT false,
  outcome           text,
  fee_lamports      bigint,
  PRIMARY KEY (payment_id, attempt)
);
CREATE UNIQUE INDEX submission_one_alive ON submission (payment_id) WHERE state = 'live';
CREATE INDEX submission_due ON submission (mode, next_check_at) WHERE state = 'live';
CREATE TRIGGER submission_is_final BEFORE UPDATE ON submission FOR EACH ROW
  WHEN (OLD.state <> 'live' OR NEW.raw <> OLD.raw OR NEW.signature <> OLD.signature)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER submission_stays BEFORE DELETE OR TRUNCATE ON submission
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The history of this database, as far as payments care. After a failover or a restore it goes on
-- in a new timeline and may have forgotten attempts: nothing is signed until what it forgot can no
-- longer land, and payments from before are looked for on the chain first.
CREATE TABLE settlement_watch (
  mode               mode PRIMARY KEY,
  timeline           text NOT NULL,
  quiet_until_height bigint NOT NULL DEFAULT 0,
  careful_before     timestamptz
);
