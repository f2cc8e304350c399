-- Spends, the ledger under them, what they use of a day's cap, and their running totals.
--
-- No foreign keys here: each check would lock the realm's and the agent's row once a spend, and
-- the wallet row that every writer holds already proves that both exist (neither is ever deleted).

-- How many spends were decided on the wallet: the number of the newest decision.
ALTER TABLE wallet ADD COLUMN decisions bigint NOT NULL DEFAULT 0 CHECK (decisions >= 0);

-- What the API calls a transaction. Terminal: settled, rejected.
CREATE TABLE spend (
  id              id PRIMARY KEY,
  realm_id        integer NOT NULL,
  agent_id        id NOT NULL,
  amount_micros   micros NOT NULL CHECK (amount_micros > 0),
  recipient       text COLLATE "C" NOT NULL,
  pay_to          text,
  -- pending -> approved | rejected; approved -> settled | rejected
  status          text NOT NULL CHECK (status IN ('pending', 'approved', 'settled', 'rejected')),
  reject_code     text,
  memo            text CHECK (length(memo) <= 200),
  metadata        text NOT NULL DEFAULT '{}',
  policy_version  integer NOT NULL,
  -- JSON as text, as the metadata is; `policy/engine.py` names the places of its array.
  decision        text NOT NULL,
  network         text NOT NULL,
  created_by      text NOT NULL,
  created_at      timestamptz(3) NOT NULL,
  expires_at      timestamptz(3),
  decided_by      text,
  decided_at      timestamptz(3),
  decision_reason text,
  signature       text,
  block_time      bigint,
  fee_lamports    bigint CHECK (fee_lamports >= 0),
  settled_at      timestamptz(3),
  updated_at      timestamptz(3) NOT NULL,
  -- Position of the decision among all decisions about this wallet: the order to replay them in.
  decision_number bigint NOT NULL CHECK (decision_number >= 1),
  CONSTRAINT rejected_has_a_code CHECK ((status = 'rejected') = (reject_code IS NOT NULL)),
  CONSTRAINT settled_is_on_chain CHECK (
    (status = 'settled') = (signature IS NOT NULL)
    AND (status = 'settled') = (settled_at IS NOT NULL)
    AND (status = 'settled' OR block_time IS NULL)),
  CONSTRAINT decided_by_someone CHECK (
    (decided_by IS NULL) = (decided_at IS NULL)
    AND (decided_by IS NOT NULL OR decision_reason IS NULL)),
  CONSTRAINT live_spend_has_a_payee CHECK (status = 'rejected' OR pay_to IS NOT NULL),
  CONSTRAINT pending_expires CHECK (status <> 'pending' OR expires_at IS NOT NULL)
);
CREATE TRIGGER spend_moves BEFORE UPDATE ON spend FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '->' || NEW.status NOT IN (
    'pending->approved', 'pending->rejected', 'approved->settled', 'approved->rejected'))
  EXECUTE FUNCTION refuse_move();
-- What was decided about is what is paid.
CREATE TRIGGER spend_terms_are_fixed BEFORE UPDATE ON spend FOR EACH ROW
  WHEN (NEW.agent_id <> OLD.agent_id OR NEW.amount_micros <> OLD.amount_micros
        OR NEW.recipient <> OLD.recipient OR NEW.pay_to IS DISTINCT FROM OLD.pay_to
        OR NEW.created_at <> OLD.created_at)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER spend_stays BEFORE DELETE OR TRUNCATE ON spend
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE UNIQUE INDEX spend_signature ON spend (signature) WHERE signature IS NOT NULL;
-- Ascending, though lists are read from their end: what is newest then goes to the right edge of
-- the index, where PostgreSQL appends without a search and leaves full pages behind.
CREATE INDEX spend_by_age ON spend (realm_id, created_at, id);
CREATE INDEX spend_by_agent ON spend (agent_id, created_at, id);
CREATE INDEX spend_by_recipient ON spend (realm_id, recipient, created_at, id);
CREATE INDEX spend_by_status ON spend (realm_id, status, created_at, id);
CREATE INDEX spend_by_settlement ON spend (realm_id, settled_at, id)
  WHERE settled_at IS NOT NULL;
CREATE INDEX spend_to_expire ON spend (expires_at) WHERE status = 'pending';
CREATE INDEX spend_to_settle ON spend (created_at) WHERE status = 'approved';

-- The journal: every move of every wallet, append-only. One row is both sides of a move, so a
-- transfer cannot be out of balance; `ledger_entry` below shows them as debit and credit.
--   deposit  outside  -> wallet           reserve  wallet holds the amount back
--   post     wallet   -> outside          void     wallet gets what it held back
CREATE TABLE transfer (
  agent_id             id NOT NULL,
  number               bigint NOT NULL CHECK (number >= 1),
  kind                 text NOT NULL CHECK (kind IN ('deposit', 'reserve', 'post', 'void')),
  payment_id           id NOT NULL,
  amount_micros        micros NOT NULL CHECK (amount_micros > 0),
  credits_posted_after micros NOT NULL,
  debits_posted_after  micros NOT NULL,
  debits_pending_after micros NOT NULL,
  created_at           timestamptz(3) NOT NULL,
  xact                 xid8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (agent_id, number),
  CONSTRAINT no_overdraft_after CHECK (
    credits_posted_after - debits_posted_after - debits_pending_after >= 0)
);
-- A payment is opened once and closed at most once.
CREATE UNIQUE INDEX transfer_once ON transfer (payment_id, (kind IN ('post', 'void')));
CREATE INDEX transfer_by_xact ON transfer (xact);
CREATE TRIGGER transfer_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON transfer
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE VIEW ledger_entry AS
  SELECT agent_id, number, payment_id, kind, created_at, side.account, side.debit_micros,
         side.credit_micros
    FROM transfer
   CROSS JOIN LATERAL (VALUES
     (CASE kind WHEN 'deposit' THEN 'outside' WHEN 'void' THEN 'held:' || agent_id
                WHEN 'post' THEN 'held:' || agent_id ELSE 'wallet:' || agent_id END,
      amount_micros, 0::bigint),
     (CASE kind WHEN 'deposit' THEN 'wallet:' || agent_id WHEN 'void' THEN 'wallet:' || agent_id
                WHEN 'post' THEN 'outside' ELSE 'held:' || agent_id END,
      0::bigint, amount_micros)) AS side (account, debit_micros, credit_micros);

-- What an agent used of a cap in one window. Only days exist today; weeks need no new table.
CREATE TABLE usage (
  agent_id     id NOT NULL,
  window_kind  text NOT NULL CHECK (window_kind = 'day'),
  window_start date NOT NULL,
  spent_micros micros NOT NULL,
  -- The cap in force at the newest spend of the window. A cap that is lowered later does not undo
  -- what was spent, but nothing can be added to the window beyond the cap it is added under.
  cap_micros   micros NOT NULL,
  PRIMARY KEY (agent_id, window_kind, window_start),
  CONSTRAINT cap_not_passed CHECK (spent_micros <= cap_micros)
) WITH (fillfactor = 50);

-- Running totals by the UTC day of createdAt. `shard` spreads the account-wide rows, so that two
-- commits seldom meet on one; '' as agent_id is the account-wide row.
CREATE TABLE spend_total (
  realm_id       integer NOT NULL,
  agent_id       id NOT NULL,
  shard          smallint NOT NULL,
  day            date NOT NULL,
  recipient      text COLLATE "C" NOT NULL,
  spend_count    bigint NOT NULL CHECK (spend_count >= 0),
  rejected_count bigint NOT NULL CHECK (rejected_count >= 0),
  settled_micros micros NOT NULL,
  PRIMARY KEY (realm_id, agent_id, day, recipient, shard)
) WITH (fillfactor = 70);

-- The tamper-evident chain over the journal: each link hashes the one before and its transfers.
CREATE TABLE seal (
  number         bigint PRIMARY KEY CHECK (number >= 1),
  xact_below     xid8 NOT NULL,
  transfer_count bigint NOT NULL CHECK (transfer_count >= 1),
  hash           sha256 NOT NULL,
  sealed_at      timestamptz(3) NOT NULL DEFAULT moment()
);
CREATE TRIGGER seal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seal
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The one way to an agent's money and policy: takes the locks, then reads in a statement of its
-- own, so that what is read is never older than the lock. Realms are locked shared: a change of the
-- recipients waits for the decisions under way, and the next ones wait for the change.
--   locking 'commit'  until the transaction ends
--           'answer'  the realms until the session lets go of them, which is when the decisions are
--                     answered: a change of an agent waits for that before it is answered itself
--           'none'    only reads, for those who decide nothing
CREATE FUNCTION lock_agents(agent_ids text[], realm_ids integer[], locking text)
RETURNS TABLE (
  agent_id id, realm_id integer, address text, mint text, wallet_status text,
  credits_posted bigint, debits_posted bigint, debits_pending bigint, transfers bigint,
  decisions bigint, is_low boolean, last_funded_at timestamptz, now timestamptz,
  agent_status text, policy_version integer, spent_today_micros bigint, directory_epoch bigint,
  has_webhooks boolean)
LANGUAGE plpgsql AS $$
DECLARE
  read_at timestamptz;
BEGIN
  IF locking <> 'none' THEN
    PERFORM CASE locking WHEN 'answer' THEN pg_advisory_lock_shared(17481, r.id)
                         ELSE pg_advisory_xact_lock_shared(17481, r.id) END
      FROM unnest(realm_ids) AS r (id) ORDER BY r.id;
    PERFORM FROM wallet w
      WHERE w.agent_id = ANY (agent_ids) AND w.realm_id = ANY (realm_ids)
      ORDER BY w.agent_id FOR NO KEY UPDATE;
  END IF;
  read_at := moment();
  RETURN QUERY
    SELECT w.agent_id, w.realm_id, w.address, w.mint, w.status, w.credits_posted::bigint,
           w.debits_posted::bigint, w.debits_pending::bigint, w.transfers, w.decisions, w.is_low,
           w.last_funded_at::timestamptz, read_at, a.status, a.policy_version,
           coalesce(u.spent_micros, 0)::bigint, r.directory_epoch,
           EXISTS (SELECT FROM webhook h WHERE h.realm_id = w.realm_id AND h.status = 'enabled')
      FROM wallet w
      JOIN agent a ON a.id = w.agent_id
      JOIN realm r ON r.id = w.realm_id
      LEFT JOIN usage u ON u.agent_id = w.agent_id AND u.window_kind = 'day'
                       AND u.window_start = (read_at AT TIME ZONE 'UTC')::date
     WHERE w.agent_id = ANY (agent_ids) AND w.realm_id = ANY (realm_ids);
END $$;
