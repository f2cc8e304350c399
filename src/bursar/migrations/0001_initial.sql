-- The schema of Bursar 0.1.0, by concept. It stays as it is: changes come as 0002, 0003 …
--
--   1  Ground           domains, the moment, what triggers refuse
--   2  Accounts         account, realm, network
--   3  Agents           budget, meter, agent, agent_label, policy
--   4  Access           api_key, console_session, idempotency
--   5  Directory        recipient
--   6  Wallets          wallet, wallet_stop; master_key, wallet_key, system_key
--   7  The journal      transfer, ledger_entry, seal
--   8  Spends           horizon, spend, usage, spend_total, day_total, recipient_total, total_delta
--   9  Money in and out withdrawal, deposit, deposit_cursor, unread_deposit
--  10  Settlement       payment, submission, settlement_watch
--  11  Purchases        pin, purchase, purchase_secret, outflows_known
--  12  Network cost     payee_account, network_cost, fee_payer_balance
--  13  Events           event, webhook, webhook_secret, delivery
--  14  The audit log    audit_log
--  15  Time machine     backtest, backtest_change, draft
--  16  Workers          heartbeat, lease, quarantine
--  17  Functions        read_agents, close_windows, add_to_windows, used_in_day, write_spends,
--                      exchange_deliveries
--
-- Rules that hold all through:
--   * money is bigint micro-units and never negative; what the chain charges is bigint lamports;
--   * moments that rows show are timestamptz(3), so what the API shows is what is compared. Those
--     that only a worker waits for (`leased_until`, `next_try_at` …) keep their microseconds;
--   * ids are text in the "C" collation, so they order by time on every server;
--   * a realm is one account in one mode; every row of a tenant hangs below one, and names it
--     together with its agent where it has one, so that no row can join two tenants;
--   * a state that an operator could be asked about is text with a CHECK, and its moves stand above
--     it. A trigger refuses every other move, because REVOKE does not bind a superuser;
--   * a list is read newest first, by (created_at, id). Its index ascends all the same: the newest
--     row then goes to the right edge, where PostgreSQL appends without a search and leaves full
--     pages behind;
--   * spends, transfers, events, usage and totals have no foreign keys: each check would lock the
--     realm's and the agent's row once a spend, and the wallet's row, which every writer of these
--     holds, proves that both exist (neither is ever deleted).
--
-- `ledger/lock.py` says who locks what, in which order.

-- 1  Ground ---------------------------------------------------------------------------------------

CREATE DOMAIN id AS text COLLATE "C";
CREATE DOMAIN micros AS bigint CHECK (VALUE >= 0);
-- A count. A domain and no CHECK of its column: PostgreSQL reads a column's CHECK anew for every
-- statement, and a wallet has a dozen of them.
CREATE DOMAIN counted AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN mode AS text CHECK (VALUE IN ('test', 'live'));
CREATE DOMAIN sha256 AS bytea CHECK (octet_length(VALUE) = 32);

-- The millisecond that rows show. clock_timestamp() and not now(): now() is the start of the
-- transaction, which may lie before the lock that the moment must follow.
CREATE FUNCTION moment() RETURNS timestamptz LANGUAGE sql VOLATILE
  RETURN date_trunc('milliseconds', clock_timestamp());

-- Which history this database is: another one after a promotion, after a restore to a point in
-- time, and after a dump was restored into a new cluster. A version or an epoch that such a change
-- forgot is given again and then means something else, so what processes remember is named by it.
CREATE FUNCTION history() RETURNS text LANGUAGE sql VOLATILE
  RETURN (SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
            FROM pg_control_system());

-- Which life of which server this is, and which database of that name: another one after a restart,
-- a failover, a restore. Cheaper than `history()`, so every write of spends compares it with the
-- one that its facts were read in.
CREATE FUNCTION server_life() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN extract(epoch FROM pg_postmaster_start_time()) || '/' || 'wallet'::regclass::oid;
END $$;

-- For tables whose rows are never changed, or never deleted.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'restrict_violation';
END $$;

-- For moves that a state does not have. Its triggers have a WHEN, so the moves that exist pay
-- nothing but the comparison.
CREATE FUNCTION refuse_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%: refused', TG_NAME USING ERRCODE = 'restrict_violation';
END $$;

-- 2  Accounts -------------------------------------------------------------------------------------

-- A tenant. The operator names it, and finds it by its name: hence unique.
CREATE TABLE account (
  id         id PRIMARY KEY,
  name       text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 100),
  created_at timestamptz(3) NOT NULL DEFAULT moment()
);

-- An account in one mode. A number, because every row of the tenant repeats it. Its row is what
-- changes of the directory, new webhooks and the stop take turns on; no spend locks it.
CREATE TABLE realm (
  id                  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  account_id          id NOT NULL REFERENCES account,
  mode                mode NOT NULL,
  -- Rises with every change of what holds for all its agents, the directory above all: what a
  -- process remembers of them is checked against it.
  rules               bigint NOT NULL DEFAULT 1,
  -- Since when a person has stopped all its agents, who, and why; null while they may spend. And
  -- whether what was approved before and is not signed waits, too: whoever stores something signed
  -- for an agent takes this row FOR SHARE first (`stop/store.py`).
  stopped_at          timestamptz(3),
  stopped_by          text,
  stop_reason         text CHECK (length(stop_reason) BETWEEN 1 AND 500),
  stop_holds_unsigned boolean NOT NULL DEFAULT false,
  UNIQUE (account_id, mode),
  CONSTRAINT stop_is_whole CHECK (
    (stopped_at IS NULL) = (stopped_by IS NULL) AND (stopped_at IS NULL) = (stop_reason IS NULL)
    AND (stopped_at IS NOT NULL OR NOT stop_holds_unsigned))
);
CREATE FUNCTION raise_own_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.rules := OLD.rules + 1;
  RETURN NEW;
END $$;
CREATE TRIGGER realm_stop_raises_rules BEFORE UPDATE ON realm FOR EACH ROW
  WHEN ((NEW.stopped_at IS NULL) <> (OLD.stopped_at IS NULL)) EXECUTE FUNCTION raise_own_rules();
CREATE TRIGGER realm_rules_only_rise BEFORE UPDATE ON realm FOR EACH ROW
  WHEN (NEW.rules < OLD.rules) EXECUTE FUNCTION refuse_move();

-- The network of each mode, pinned at the first start: another one later is refused. One genesis
-- hash for both modes would make test money of live money.
CREATE TABLE network (
  mode         mode PRIMARY KEY,
  genesis_hash text NOT NULL UNIQUE,
  mint         text NOT NULL,
  -- Micro-units are counted as such because the token has six places.
  decimals     smallint NOT NULL CHECK (decimals = 6),
  pinned_at    timestamptz(3) NOT NULL DEFAULT moment()
);

-- 3  Agents ---------------------------------------------------------------------------------------

-- Counters of what was spent, and how often, in the windows that contain `windows_at`: of a budget,
-- or of a policy's limit that has a recipient. A wallet has the same columns. Windows that are over
-- are not kept: what is released later goes to windows that are still open.
CREATE TABLE meter (
  id           id PRIMARY KEY,
  realm_id     integer NOT NULL REFERENCES realm,
  -- Rises with every change of the budget that it belongs to.
  rules        bigint NOT NULL DEFAULT 1,
  -- How many decisions and releases it has counted: the order in which they came.
  decisions    counted NOT NULL DEFAULT 0,
  windows_at   timestamptz(3),
  hour_micros  micros NOT NULL DEFAULT 0,
  hour_count   counted NOT NULL DEFAULT 0,
  day_micros   micros NOT NULL DEFAULT 0,
  day_count    counted NOT NULL DEFAULT 0,
  week_micros  micros NOT NULL DEFAULT 0,
  week_count   counted NOT NULL DEFAULT 0,
  month_micros micros NOT NULL DEFAULT 0,
  month_count  counted NOT NULL DEFAULT 0,
  life_micros  micros NOT NULL DEFAULT 0,
  life_count   counted NOT NULL DEFAULT 0,
  -- From when on it counts.
  created_at   timestamptz(3) NOT NULL DEFAULT moment()
) WITH (fillfactor = 50);
CREATE TRIGGER meter_only_rises BEFORE UPDATE ON meter FOR EACH ROW
  WHEN (NEW.decisions < OLD.decisions OR NEW.rules < OLD.rules OR NEW.windows_at < OLD.windows_at
        OR NEW.windows_at IS NULL AND OLD.windows_at IS NOT NULL)
  EXECUTE FUNCTION refuse_move();
-- Even when its budget is deleted or its limit removed: what it counted may be given back later.
CREATE TRIGGER meter_stays BEFORE DELETE OR TRUNCATE ON meter
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- A ceiling that agents share. A spend must pass every budget above its agent.
CREATE TABLE budget (
  id         id PRIMARY KEY REFERENCES meter,
  realm_id   integer NOT NULL REFERENCES realm,
  name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  parent_id  id REFERENCES budget,
  -- How many are above it, itself included.
  level      smallint NOT NULL CHECK (level BETWEEN 1 AND 4),
  -- JSON of the limits, as `policy/limits.py` has them.
  limits     text NOT NULL,
  frozen     boolean NOT NULL DEFAULT false,
  created_by text NOT NULL,
  created_at timestamptz(3) NOT NULL,
  updated_at timestamptz(3) NOT NULL,
  UNIQUE (id, realm_id),
  FOREIGN KEY (parent_id, realm_id) REFERENCES budget (id, realm_id)
);
-- The list; and the budgets below one.
CREATE INDEX budget_by_age ON budget (realm_id, created_at, id);
CREATE INDEX budget_by_parent ON budget (parent_id) WHERE parent_id IS NOT NULL;
CREATE TRIGGER budget_stays_in_place BEFORE UPDATE ON budget FOR EACH ROW
  WHEN (NEW.parent_id IS DISTINCT FROM OLD.parent_id OR NEW.level <> OLD.level
        OR NEW.realm_id <> OLD.realm_id)
  EXECUTE FUNCTION refuse_move();
-- What processes remember of a budget is checked against its meter's `rules`.
CREATE FUNCTION raise_meter_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE meter SET rules = rules + 1 WHERE id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER budget_raises_rules AFTER UPDATE ON budget FOR EACH ROW
  WHEN (NEW.limits <> OLD.limits OR NEW.frozen <> OLD.frozen)
  EXECUTE FUNCTION raise_meter_rules();

-- What spends. Never deleted: its spends, policies and audit lines tell of it.
CREATE TABLE agent (
  id             id PRIMARY KEY,
  realm_id       integer NOT NULL REFERENCES realm,
  name           text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  -- active <-> paused; active | paused -> terminated, for good
  status         text NOT NULL DEFAULT 'active'
                 CHECK (status IN ('active', 'paused', 'terminated')),
  metadata       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
  policy_id      id NOT NULL UNIQUE,
  -- The version in force; it must exist (see the foreign key below `policy`).
  policy_version integer NOT NULL DEFAULT 1 CHECK (policy_version >= 1),
  -- The budget that it is under, if it is under one.
  budget_id      id,
  created_at     timestamptz(3) NOT NULL,
  updated_at     timestamptz(3) NOT NULL,
  terminated_at  timestamptz(3),
  CONSTRAINT terminated_has_a_date CHECK ((status = 'terminated') = (terminated_at IS NOT NULL)),
  -- What the foreign keys of an agent's rows point at.
  UNIQUE (id, realm_id),
  FOREIGN KEY (budget_id, realm_id) REFERENCES budget (id, realm_id)
);
CREATE TRIGGER agent_ends_for_good BEFORE UPDATE ON agent FOR EACH ROW
  WHEN (OLD.status = 'terminated' AND NEW.status <> 'terminated') EXECUTE FUNCTION refuse_move();
-- What a process remembers of an agent is checked against its wallet's `rules`, so nothing that
-- changes the rules may forget to raise it.
CREATE FUNCTION raise_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE wallet SET rules = rules + 1 WHERE agent_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER agent_raises_rules AFTER UPDATE ON agent FOR EACH ROW
  WHEN (NEW.status <> OLD.status OR NEW.policy_version <> OLD.policy_version
        OR NEW.budget_id IS DISTINCT FROM OLD.budget_id)
  EXECUTE FUNCTION raise_rules();
-- The list of agents, and the same by status.
CREATE INDEX agent_by_age ON agent (realm_id, created_at, id);
CREATE INDEX agent_by_status ON agent (realm_id, status, created_at, id);
-- A budget's agents.
CREATE INDEX agent_by_budget ON agent (budget_id, created_at, id) WHERE budget_id IS NOT NULL;

-- One row per metadata pair, ordered as the list is: a page of a filter costs the same however
-- many agents there are. Values are hashed because an index entry has a size limit.
CREATE TABLE agent_label (
  agent_id   id NOT NULL,
  realm_id   integer NOT NULL,
  name       text NOT NULL,
  value_hash bytea NOT NULL,
  created_at timestamptz(3) NOT NULL,
  PRIMARY KEY (agent_id, name),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
-- The list of agents by one pair.
CREATE INDEX agent_label_by_age
  ON agent_label (realm_id, name, value_hash, created_at, agent_id);

-- Every version of every policy. A version never changes, so any process may remember it for ever.
CREATE TABLE policy (
  agent_id                    id NOT NULL REFERENCES agent,
  version                     integer NOT NULL CHECK (version >= 1),
  -- Limits are cents: the API takes two places.
  cap_micros_daily            micros NOT NULL CHECK (cap_micros_daily % 10000 = 0),
  cap_micros_per_transaction  micros CHECK (cap_micros_per_transaction % 10000 = 0),
  approval_threshold_micros   micros CHECK (approval_threshold_micros % 10000 = 0),
  -- JSON of its limits, as `policy/limits.py` has them.
  limits                      text NOT NULL DEFAULT '[]',
  -- What its payments may cost on the chain in a day; null is the service's own limit.
  network_lamports_daily      bigint CHECK (network_lamports_daily >= 0),
  -- Bounded, because every decision of an agent goes through them.
  allowlist                   text[] NOT NULL CHECK (cardinality(allowlist) <= 1000),
  blocklist                   text[] NOT NULL CHECK (cardinality(blocklist) <= 1000),
  -- What tells where a host is paid that the directory does not have (purchases only).
  payees                      text NOT NULL CHECK (payees IN ('directory', 'pinned', 'host')),
  frozen                      boolean NOT NULL,
  changed_by                  text NOT NULL,
  changed_at                  timestamptz(3) NOT NULL,
  PRIMARY KEY (agent_id, version)
);
CREATE TRIGGER policy_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON policy
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- An agent and its first policy name each other, so the check waits for the commit.
ALTER TABLE agent ADD FOREIGN KEY (id, policy_version) REFERENCES policy (agent_id, version)
  DEFERRABLE INITIALLY DEFERRED;

-- 4  Access ---------------------------------------------------------------------------------------

-- Who may ask for what. Never deleted: rows say which key did it.
CREATE TABLE api_key (
  id           id PRIMARY KEY,
  realm_id     integer NOT NULL REFERENCES realm,
  scope        text NOT NULL CHECK (scope IN ('admin', 'agent', 'approver', 'read')),
  agent_id     id,
  name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  -- SHA-256 of the key, by which a request finds it. The key has 190 random bits, so a slow hash
  -- would add nothing.
  hash         sha256 NOT NULL UNIQUE,
  created_at   timestamptz(3) NOT NULL DEFAULT moment(),
  expires_at   timestamptz(3),
  last_used_at timestamptz(3),
  -- null -> a date, for good
  revoked_at   timestamptz(3),
  CONSTRAINT agent_scope_has_an_agent CHECK ((scope = 'agent') = (agent_id IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE TRIGGER api_key_is_revoked_for_good BEFORE UPDATE ON api_key FOR EACH ROW
  WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
  EXECUTE FUNCTION refuse_move();
-- The list of keys; and an agent's, which are revoked with it.
CREATE INDEX api_key_by_age ON api_key (realm_id, created_at, id);
CREATE INDEX api_key_by_agent ON api_key (agent_id) WHERE agent_id IS NOT NULL;

-- Who is signed in to the console. The token is in the browser's cookie and nowhere else: what is
-- kept is its hash, and which key it stands for.
CREATE TABLE console_session (
  token_hash   sha256 PRIMARY KEY,
  -- What a session is called on pages: its hash would tell whether a token fits.
  id           id NOT NULL UNIQUE,
  key_id       id NOT NULL REFERENCES api_key,
  -- What the browser called itself when it signed in.
  browser      text NOT NULL DEFAULT '' CHECK (length(browser) <= 200),
  created_at   timestamptz(3) NOT NULL DEFAULT moment(),
  expires_at   timestamptz(3) NOT NULL,
  last_used_at timestamptz(3) NOT NULL DEFAULT moment(),
  -- Where it was last used from, as far as it is known.
  address      text NOT NULL DEFAULT '' CHECK (length(address) <= 100),
  CONSTRAINT session_has_a_span CHECK (expires_at > created_at)
);
-- A key's oldest sessions, which end when it has too many; and those to sweep up.
CREATE INDEX console_session_by_key ON console_session (key_id, created_at);
CREATE INDEX console_session_to_forget ON console_session (expires_at);

-- What a request with an idempotency key was answered, so that its repetition gets the same.
-- Written in the commit of the effect it stands for: both are there, or neither. Spends keep their
-- keys themselves.
CREATE TABLE idempotency (
  realm_id    integer NOT NULL,
  route       text NOT NULL,
  key         text COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
  -- Of the request: another one with the same key is refused.
  fingerprint sha256 NOT NULL,
  -- Only what had an effect is remembered.
  status      smallint NOT NULL CHECK (status BETWEEN 200 AND 299),
  body        bytea NOT NULL,
  created_at  timestamptz(3) NOT NULL DEFAULT moment(),
  PRIMARY KEY (realm_id, route, key)
);
-- Rows lie in the order of their age.
CREATE INDEX idempotency_to_forget ON idempotency USING brin (created_at);

-- 5  Directory ------------------------------------------------------------------------------------

-- Which address a hostname is paid at.
CREATE TABLE recipient (
  realm_id   integer NOT NULL REFERENCES realm,
  hostname   text COLLATE "C" NOT NULL CHECK (length(hostname) BETWEEN 1 AND 253),
  -- Base58 of 32 bytes.
  address    text NOT NULL CHECK (length(address) BETWEEN 32 AND 44),
  created_by text NOT NULL,
  created_at timestamptz(3) NOT NULL,
  -- Who gave it this address, and when.
  updated_by text NOT NULL,
  updated_at timestamptz(3) NOT NULL,
  PRIMARY KEY (realm_id, hostname)
);
-- What processes remember of the directory is checked against its realm's `rules`.
CREATE FUNCTION raise_realm_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE realm SET rules = rules + 1 WHERE id = coalesce(NEW.realm_id, OLD.realm_id);
  RETURN NULL;
END $$;
CREATE TRIGGER recipient_raises_rules AFTER INSERT OR UPDATE OR DELETE ON recipient
  FOR EACH ROW EXECUTE FUNCTION raise_realm_rules();
-- The list; and which hosts are paid at an address, because blocking one of them blocks it.
CREATE INDEX recipient_by_age ON recipient (realm_id, created_at, hostname);
CREATE INDEX recipient_by_address ON recipient (realm_id, address);
-- Which addresses changed lately, for the banner of the console.
CREATE INDEX recipient_by_change ON recipient (realm_id, updated_at);

-- 6  Wallets --------------------------------------------------------------------------------------

-- An agent's money. The row is also the lock of its agent: whatever decides about the agent's money
-- or policy takes it first. Half of each page stays free and no counter is indexed, so updates stay
-- in place.
--   balance = credits posted - debits posted;  reserved = debits pending
CREATE TABLE wallet (
  agent_id       id PRIMARY KEY,
  realm_id       integer NOT NULL,
  address        text NOT NULL UNIQUE,
  mint           text NOT NULL,
  -- provisioned -> funded, at the first deposit; funded <-> depleted, with the balance
  status         text NOT NULL DEFAULT 'provisioned'
                 CHECK (status IN ('provisioned', 'funded', 'depleted')),
  credits_posted micros NOT NULL DEFAULT 0,
  debits_posted  micros NOT NULL DEFAULT 0,
  debits_pending micros NOT NULL DEFAULT 0,
  -- How many transfers the journal has of it: the next one's number is one more.
  transfers      counted NOT NULL DEFAULT 0,
  -- How many spends were decided on it: the number of the newest decision.
  decisions      counted NOT NULL DEFAULT 0,
  -- How many of them were refusals that are forgotten (`horizon`).
  forgotten      counted NOT NULL DEFAULT 0,
  -- How many of them wait for a person.
  pending_count  counted NOT NULL DEFAULT 0,
  -- Rises with every change of the agent's policy and status (`agent_raises_rules`).
  rules          bigint NOT NULL DEFAULT 1,
  -- What was spent, and how often, in the windows that contain `windows_at`: the moment of the
  -- newest decision, which never runs back. Whoever decides in a later hour closes those that are
  -- over (`close_windows`); `usage` keeps them. A window's use is the sum of its spends that were
  -- not rejected, counted whether or not a limit stands.
  windows_at     timestamptz(3),
  hour_micros    micros NOT NULL DEFAULT 0,
  hour_count     counted NOT NULL DEFAULT 0,
  day_micros     micros NOT NULL DEFAULT 0,
  day_count      counted NOT NULL DEFAULT 0,
  week_micros    micros NOT NULL DEFAULT 0,
  week_count     counted NOT NULL DEFAULT 0,
  month_micros   micros NOT NULL DEFAULT 0,
  month_count    counted NOT NULL DEFAULT 0,
  life_micros    micros NOT NULL DEFAULT 0,
  life_count     counted NOT NULL DEFAULT 0,
  -- The day's cap at its newest spend. A cap that is lowered later does not undo what was spent,
  -- but nothing can be added to the day beyond the cap it is added under.
  day_cap_micros micros NOT NULL DEFAULT 0,
  -- The same for what the day's payments cost on the chain.
  day_lamports   counted NOT NULL DEFAULT 0,
  day_cap_lamports bigint NOT NULL DEFAULT 0,
  -- The day of `windows_at`, as of its first decision: whose wallets moved lately.
  active_on      date,
  -- balance x 10 < daily cap, kept with every change of either
  is_low         boolean NOT NULL,
  last_funded_at timestamptz(3),
  -- Frozen: the chain holds less than the journal says, so nothing new is signed for it.
  is_frozen      boolean NOT NULL DEFAULT false,
  -- The slot of the newest deposit that was credited: a node that is not as far says nothing of
  -- what the wallet lacks.
  credited_slot  counted NOT NULL DEFAULT 0,
  -- The last guard of the money, whatever the code decides.
  CONSTRAINT no_overdraft CHECK (credits_posted - debits_posted - debits_pending >= 0),
  CONSTRAINT cap_not_passed CHECK (day_micros <= day_cap_micros),
  CONSTRAINT network_cap_not_passed CHECK (day_lamports <= day_cap_lamports),
  CONSTRAINT funded_has_a_date CHECK ((status = 'provisioned') = (last_funded_at IS NULL)),
  CONSTRAINT status_follows_balance CHECK (
    (status = 'funded') = (credits_posted - debits_posted > 0)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
) WITH (fillfactor = 50);
CREATE TRIGGER wallet_totals_only_rise BEFORE UPDATE ON wallet FOR EACH ROW
  WHEN (NEW.credits_posted < OLD.credits_posted OR NEW.debits_posted < OLD.debits_posted
        OR NEW.transfers < OLD.transfers OR NEW.decisions < OLD.decisions
        OR NEW.forgotten < OLD.forgotten OR NEW.rules < OLD.rules OR NEW.windows_at < OLD.windows_at
        OR NEW.windows_at IS NULL AND OLD.windows_at IS NOT NULL)
  EXECUTE FUNCTION refuse_move();
-- Few, and compared with the chain in every sweep; so are those that moved lately. Its column
-- changes once a day, so updates stay in place.
CREATE INDEX wallet_frozen ON wallet (agent_id) WHERE is_frozen;
CREATE INDEX wallet_by_activity ON wallet (active_on);
CREATE TRIGGER wallet_stays BEFORE DELETE OR TRUNCATE ON wallet
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- A wallet that was stopped because every node said that money is missing. While the row is there,
-- the stop may turn out to be wrong and be undone. Entering a payment that was made outside proves
-- it right, and the row goes.
CREATE TABLE wallet_stop (
  agent_id       id PRIMARY KEY REFERENCES agent,
  -- The version that froze the policy; null when it was frozen before.
  policy_version integer,
  stopped_at     timestamptz(3) NOT NULL DEFAULT moment()
);

-- The master keys in force. The version is an id computed from the key, so that every process finds
-- the right one whatever order they were configured in. A version can only be retired when nothing
-- is sealed with it, and from then on nothing can be: the foreign keys to it see to both.
CREATE TABLE master_key (
  version  integer PRIMARY KEY CHECK (version >= 1),
  added_at timestamptz(3) NOT NULL DEFAULT moment()
);

-- Keys of wallets, sealed with AES-256-GCM; agent id, address and versions are the associated data.
CREATE TABLE wallet_key (
  agent_id       id PRIMARY KEY REFERENCES agent,
  address        text NOT NULL,
  key_version    integer NOT NULL CHECK (key_version >= 1),
  master_version integer NOT NULL REFERENCES master_key CHECK (master_version >= 1),
  sealed         bytea NOT NULL,
  -- Who signs with it: 'embedded', or where it lives.
  provider       text NOT NULL DEFAULT 'embedded',
  created_at     timestamptz(3) NOT NULL DEFAULT moment()
);
-- What a rotation has yet to seal again, and whether a master key is still in use.
CREATE INDEX wallet_key_by_master ON wallet_key (master_version);

-- Keys of the service itself, sealed in the same way. The owner says what a key is for:
-- `fee_payer:test`.
CREATE TABLE system_key (
  owner          text COLLATE "C" PRIMARY KEY,
  address        text NOT NULL UNIQUE,
  key_version    integer NOT NULL CHECK (key_version >= 1),
  master_version integer NOT NULL REFERENCES master_key,
  sealed         bytea NOT NULL,
  provider       text NOT NULL,
  created_at     timestamptz(3) NOT NULL DEFAULT moment()
);

-- 7  The journal ----------------------------------------------------------------------------------

-- Every move of every wallet. One row is both sides of a move, so a transfer cannot be out of
-- balance; `ledger_entry` below shows them as debit and credit.
--   deposit  outside  -> wallet           reserve  wallet   -> reserved
--   post     reserved -> outside          void     reserved -> wallet
CREATE TABLE transfer (
  agent_id             id NOT NULL,
  number               bigint NOT NULL CHECK (number >= 1),
  kind                 text NOT NULL CHECK (kind IN ('deposit', 'reserve', 'post', 'void')),
  -- The spend, withdrawal or deposit that it is about.
  subject_id           id NOT NULL,
  amount_micros        micros NOT NULL CHECK (amount_micros > 0),
  credits_posted_after micros NOT NULL,
  debits_posted_after  micros NOT NULL,
  debits_pending_after micros NOT NULL,
  created_at           timestamptz(3) NOT NULL,
  -- Who wrote it: the seal covers only what is older than the oldest running transaction.
  xact                 xid8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (agent_id, number),
  CONSTRAINT no_overdraft_after CHECK (
    credits_posted_after - debits_posted_after - debits_pending_after >= 0)
);
-- A subject is closed at most once, and a deposit made once. A spend or withdrawal is reserved once
-- because its own row is made in that commit.
CREATE UNIQUE INDEX transfer_closes_once ON transfer (subject_id) WHERE kind IN ('post', 'void');
CREATE UNIQUE INDEX transfer_deposits_once ON transfer (subject_id) WHERE kind = 'deposit';
-- The order in which transfers are sealed.
CREATE INDEX transfer_by_xact ON transfer (xact);
CREATE TRIGGER transfer_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON transfer
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The journal as double entry, for the audit and for people.
CREATE VIEW ledger_entry AS
  SELECT agent_id, number, subject_id, kind, created_at, side.account, side.debit_micros,
         side.credit_micros
    FROM transfer
   CROSS JOIN LATERAL (VALUES
     (CASE kind WHEN 'deposit' THEN 'outside' WHEN 'void' THEN 'reserved:' || agent_id
                WHEN 'post' THEN 'reserved:' || agent_id ELSE 'wallet:' || agent_id END,
      amount_micros, 0::bigint),
     (CASE kind WHEN 'deposit' THEN 'wallet:' || agent_id WHEN 'void' THEN 'wallet:' || agent_id
                WHEN 'post' THEN 'outside' ELSE 'reserved:' || agent_id END,
      0::bigint, amount_micros)) AS side (account, debit_micros, credit_micros);

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

-- 8  Spends ---------------------------------------------------------------------------------------

-- One row: the UTC day before which spends that were refused at once are forgotten. It rises before
-- they are deleted, so whoever sees that one is gone sees also why. Wallets keep how many of theirs
-- are gone (`wallet.forgotten`), and the totals go on counting them.
CREATE TABLE horizon (
  one      boolean PRIMARY KEY DEFAULT true CHECK (one),
  refusals date NOT NULL
);
INSERT INTO horizon (refusals) VALUES ('-infinity');
-- Events of refusals can be read for 90 days, and are made from them.
CREATE TRIGGER horizon_only_rises BEFORE UPDATE ON horizon FOR EACH ROW
  WHEN (NEW.refusals < OLD.refusals
        OR NEW.refusals > (moment() AT TIME ZONE 'UTC')::date - 90)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER horizon_stays BEFORE DELETE OR TRUNCATE ON horizon
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE FUNCTION forgotten_before() RETURNS timestamptz LANGUAGE sql STABLE
  RETURN (SELECT refusals::timestamp AT TIME ZONE 'UTC' FROM horizon);

-- One request to pay, decided; the API calls it a transaction.
CREATE TABLE spend (
  id               id PRIMARY KEY,
  realm_id         integer NOT NULL,
  agent_id         id NOT NULL,
  -- What was asked for.
  amount_micros    micros NOT NULL CHECK (amount_micros > 0),
  recipient        text COLLATE "C" NOT NULL,
  pay_to           text,
  memo             text CHECK (length(memo) <= 200),
  metadata         text NOT NULL DEFAULT '{}',
  network          text NOT NULL,
  created_by       text NOT NULL,
  created_at       timestamptz(3) NOT NULL,
  -- The purchase that it pays for, if it is one's: then others submit the payment, and settlement
  -- makes none.
  purchase_id      id UNIQUE,
  -- The budget that its agent was under when it was decided.
  budget_id        id,
  -- Of the request that made it, if it had one; the fingerprint tells requests apart.
  idempotency_key  text COLLATE "C",
  fingerprint      bytea,
  -- What became of it.
  -- (new) -> pending | approved | rejected; pending -> approved | rejected;
  -- approved -> settled | rejected
  status           text NOT NULL CHECK (status IN ('pending', 'approved', 'settled', 'rejected')),
  reject_code      text,
  updated_at       timestamptz(3) NOT NULL,
  -- What was decided at once: approved, pending or rejected. Never changes; its event has the
  -- letters of the spend's own id and no row of its own.
  verdict          text NOT NULL,
  -- What it was judged by and on: what the rules say of the request (JSON as text), and the numbers
  -- that were used until then. `policy/engine.py` names the places of both arrays.
  terms            text NOT NULL,
  used             bigint[] NOT NULL,
  policy_version   integer NOT NULL,
  -- Position of the decision among all decisions about this wallet: the order to replay them in.
  decision_number  bigint NOT NULL CHECK (decision_number >= 1),
  -- What a person said of one that was pending.
  expires_at       timestamptz(3),
  decided_by       text,
  decided_at       timestamptz(3),
  decision_reason  text,
  -- For replays, where it changed: how many decisions its wallet had when a person approved it, and
  -- how much each of its meters had counted when its amount was given back, in the order in which
  -- its terms name them.
  approved_after   bigint,
  released_after   bigint[],
  -- What it reserves of its day's network budget while it is open, and what it cost in the end.
  network_lamports bigint NOT NULL DEFAULT 0 CHECK (network_lamports >= 0),
  -- What the chain said.
  signature        text,
  block_time       bigint,
  fee_lamports     bigint CHECK (fee_lamports >= 0),
  rent_lamports    bigint CHECK (rent_lamports >= 0),
  settled_at       timestamptz(3),
  CONSTRAINT rejected_has_a_code CHECK ((status = 'rejected') = (reject_code IS NOT NULL)),
  CONSTRAINT verdict_comes_first CHECK (
    verdict IN ('pending', 'approved') OR verdict = 'rejected' AND status = 'rejected'),
  CONSTRAINT settled_is_on_chain CHECK (
    (status = 'settled') = (signature IS NOT NULL)
    AND (status = 'settled') = (settled_at IS NOT NULL)
    AND (status = 'settled' OR block_time IS NULL)),
  CONSTRAINT decided_by_someone CHECK (
    (decided_by IS NULL) = (decided_at IS NULL)
    AND (decided_by IS NOT NULL OR decision_reason IS NULL)),
  CONSTRAINT live_spend_has_a_payee CHECK (status = 'rejected' OR pay_to IS NOT NULL),
  CONSTRAINT key_has_a_fingerprint CHECK (
    (idempotency_key IS NULL) = (fingerprint IS NULL)
    AND length(idempotency_key) BETWEEN 1 AND 255 AND octet_length(fingerprint) = 32),
  -- Money is not reserved for ever because nobody answers.
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
        OR NEW.created_at <> OLD.created_at OR NEW.verdict <> OLD.verdict
        OR NEW.purchase_id IS DISTINCT FROM OLD.purchase_id
        OR NEW.budget_id IS DISTINCT FROM OLD.budget_id
        OR NEW.terms <> OLD.terms OR NEW.used <> OLD.used
        OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key
        OR NEW.fingerprint IS DISTINCT FROM OLD.fingerprint)
  EXECUTE FUNCTION refuse_move();
-- Only what moved no money is ever forgotten.
CREATE TRIGGER spend_stays BEFORE DELETE ON spend FOR EACH ROW
  WHEN (OLD.verdict <> 'rejected' OR OLD.created_at >= forgotten_before())
  EXECUTE FUNCTION refuse_change();
CREATE TRIGGER spends_stay BEFORE TRUNCATE ON spend
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- One transaction on the chain settles one spend.
CREATE UNIQUE INDEX spend_signature ON spend (signature) WHERE signature IS NOT NULL;
-- One request, one spend, however often it is sent.
CREATE UNIQUE INDEX spend_key ON spend (agent_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
-- The list of transactions, and the same by agent, by recipient, by status, by settlement.
CREATE INDEX spend_by_age ON spend (realm_id, created_at, id);
CREATE INDEX spend_by_agent ON spend (agent_id, created_at, id);
CREATE INDEX spend_by_recipient ON spend (realm_id, recipient, created_at, id);
CREATE INDEX spend_by_status ON spend (realm_id, status, created_at, id);
CREATE INDEX spend_by_settlement ON spend (realm_id, settled_at, id)
  WHERE settled_at IS NOT NULL;
-- What counts in a budget, for the audit and for replays.
CREATE INDEX spend_by_budget ON spend (budget_id, created_at, id) WHERE budget_id IS NOT NULL;
-- Those whose creation event is of a rarer kind than "approved", for the list of events.
CREATE INDEX spend_made_pending ON spend (realm_id, created_at, id) WHERE verdict = 'pending';
CREATE INDEX spend_failed_later ON spend (realm_id, created_at, id)
  WHERE verdict <> 'rejected' AND status = 'rejected';
-- What workers look for: refusals to forget, those to expire, and settled ones whose block had no
-- time yet. The first is by day, or the planner would read an account's newest refusals from it,
-- among everybody's.
CREATE INDEX spend_to_forget ON spend (((created_at AT TIME ZONE 'UTC')::date))
  WHERE verdict = 'rejected';
CREATE INDEX spend_to_expire ON spend (expires_at) WHERE status = 'pending';
CREATE INDEX spend_without_time ON spend (settled_at)
  WHERE status = 'settled' AND block_time IS NULL;
-- An agent's that wait for a person: its end rejects them.
CREATE INDEX spend_pending ON spend (agent_id) WHERE status = 'pending';
-- Open ones that reserve the rent of a token account (2,039,280 lamports): a second spend to the
-- same payee need not.
CREATE INDEX spend_opening ON spend (agent_id, pay_to)
  WHERE status IN ('pending', 'approved') AND network_lamports >= 2039280;

-- What an agent used in windows that are over: approvals and releases look back. The windows that
-- run are in the wallet.
CREATE TABLE usage (
  agent_id     id NOT NULL,
  window_kind  text NOT NULL CHECK (window_kind IN ('hour', 'day', 'week', 'month')),
  window_start timestamptz(3) NOT NULL,
  micros       micros NOT NULL,
  spends       bigint NOT NULL CHECK (spends >= 0),
  -- Of days only.
  lamports     bigint NOT NULL DEFAULT 0 CHECK (lamports >= 0),
  PRIMARY KEY (agent_id, window_kind, window_start)
) WITH (fillfactor = 50);

-- Running totals by the UTC day of createdAt; '' as agent_id is the whole account's. '' as
-- recipient counts refused ones: an agent could name a new one each time.
CREATE TABLE spend_total (
  realm_id       integer NOT NULL,
  agent_id       id NOT NULL,
  day            date NOT NULL,
  recipient      text COLLATE "C" NOT NULL,
  spend_count    bigint NOT NULL CHECK (spend_count >= 0),
  rejected_count bigint NOT NULL CHECK (rejected_count >= 0),
  settled_micros micros NOT NULL,
  PRIMARY KEY (realm_id, agent_id, day, recipient)
) WITH (fillfactor = 70);

-- The same by day alone, and what each recipient was paid in all, so that statistics of all time
-- need not add up every recipient of every day.
CREATE TABLE day_total (
  realm_id       integer NOT NULL,
  agent_id       id NOT NULL,
  day            date NOT NULL,
  spend_count    bigint NOT NULL CHECK (spend_count >= 0),
  rejected_count bigint NOT NULL CHECK (rejected_count >= 0),
  settled_micros micros NOT NULL,
  PRIMARY KEY (realm_id, agent_id, day)
) WITH (fillfactor = 50);
CREATE TABLE recipient_total (
  realm_id       integer NOT NULL,
  agent_id       id NOT NULL,
  recipient      text COLLATE "C" NOT NULL,
  settled_micros micros NOT NULL CHECK (settled_micros > 0),
  PRIMARY KEY (realm_id, agent_id, recipient)
);
-- Those paid the most.
CREATE INDEX recipient_total_by_size
  ON recipient_total (realm_id, agent_id, settled_micros DESC, recipient);

-- What commits add to the totals, until a worker has folded it in. No index and no lock, so that it
-- costs a spend next to nothing; statistics add it up with the totals in one snapshot.
CREATE TABLE total_delta (
  realm_id       integer NOT NULL,
  agent_id       id NOT NULL,
  day            date NOT NULL,
  recipient      text COLLATE "C" NOT NULL,
  spend_count    smallint NOT NULL,
  rejected_count smallint NOT NULL,
  settled_micros micros NOT NULL
);

-- 9  Money in and out -----------------------------------------------------------------------------

-- Money sent out of a wallet by an operator, outside every cap.
CREATE TABLE withdrawal (
  id            id PRIMARY KEY,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  destination   text NOT NULL,
  memo          text CHECK (length(memo) <= 200),
  metadata      json NOT NULL DEFAULT '{}',
  network       text NOT NULL,
  created_by    text NOT NULL,
  created_at    timestamptz(3) NOT NULL,
  -- pending -> settled | failed
  status        text NOT NULL CHECK (status IN ('pending', 'settled', 'failed')),
  failure_code  text,
  signature     text,
  block_time    bigint,
  fee_lamports  bigint CHECK (fee_lamports >= 0),
  rent_lamports bigint CHECK (rent_lamports >= 0),
  settled_at    timestamptz(3),
  CONSTRAINT failed_has_a_code CHECK ((status = 'failed') = (failure_code IS NOT NULL)),
  CONSTRAINT settled_withdrawal_is_on_chain CHECK (
    (status = 'settled') = (signature IS NOT NULL)
    AND (status = 'settled') = (settled_at IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
-- One that ended stays as it is, but for a block's time, which may be known later than the block:
-- then it is filled in, and nothing else.
CREATE TRIGGER withdrawal_moves BEFORE UPDATE ON withdrawal FOR EACH ROW
  WHEN (OLD.status <> 'pending'
        AND (OLD.block_time IS NOT NULL
             OR to_jsonb(NEW) - 'block_time' <> to_jsonb(OLD) - 'block_time')
        OR NEW.amount_micros <> OLD.amount_micros OR NEW.destination <> OLD.destination
        OR NEW.agent_id <> OLD.agent_id)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER withdrawal_stays BEFORE DELETE OR TRUNCATE ON withdrawal
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- One transaction on the chain settles one withdrawal.
CREATE UNIQUE INDEX withdrawal_signature ON withdrawal (signature);
-- An agent's list; the account's export; those whose block had no time yet.
CREATE INDEX withdrawal_by_agent ON withdrawal (agent_id, created_at DESC, id DESC);
CREATE INDEX withdrawal_by_realm ON withdrawal (realm_id, created_at, id);
CREATE INDEX withdrawal_without_time ON withdrawal (settled_at)
  WHERE status = 'settled' AND block_time IS NULL;

-- One row per transfer on the chain into a wallet's token account.
CREATE TABLE deposit (
  id            id PRIMARY KEY,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  token_account text NOT NULL,
  sender        text,
  signature     text NOT NULL,
  block_time    bigint,
  -- pending -> credited
  status        text NOT NULL CHECK (status IN ('pending', 'credited')),
  created_at    timestamptz(3) NOT NULL,
  credited_at   timestamptz(3),
  -- Each is credited once, whoever notices it, and however often.
  UNIQUE (signature, token_account),
  CONSTRAINT credited_has_a_date CHECK ((status = 'credited') = (credited_at IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
-- As for withdrawals, a block's time may come later.
CREATE TRIGGER deposit_is_credited_once BEFORE UPDATE ON deposit FOR EACH ROW
  WHEN (OLD.status = 'credited'
        AND (OLD.block_time IS NOT NULL
             OR to_jsonb(NEW) - 'block_time' <> to_jsonb(OLD) - 'block_time')
        OR NEW.agent_id <> OLD.agent_id OR NEW.signature <> OLD.signature
        OR NEW.token_account <> OLD.token_account)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER deposit_stays BEFORE DELETE OR TRUNCATE ON deposit
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- An agent's list; the account's export; and those whose block had no time yet.
CREATE INDEX deposit_by_agent ON deposit (agent_id, created_at DESC, id DESC);
CREATE INDEX deposit_by_realm ON deposit (realm_id, created_at, id);
CREATE INDEX deposit_without_time ON deposit (credited_at)
  WHERE status = 'credited' AND block_time IS NULL;

-- Which wallets were funded lately, for the same sweep; rows lie in the order of their age.
CREATE INDEX deposit_by_age ON deposit USING brin (created_at);

-- How far the history of a wallet's token account has been read.
CREATE TABLE deposit_cursor (
  agent_id  id PRIMARY KEY,
  signature text NOT NULL
);

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
-- Which agents have some to try again, and which those are.
CREATE INDEX unread_deposit_due ON unread_deposit (next_try_at) WHERE dismissed_at IS NULL;
CREATE INDEX unread_deposit_by_agent ON unread_deposit (agent_id) WHERE dismissed_at IS NULL;

-- 10  Settlement ----------------------------------------------------------------------------------

-- An approved spend or a withdrawal that has to be made on the chain; it has the id of that, and is
-- written in the commit that approves it. What has no row here is not paid.
CREATE TABLE payment (
  id            id PRIMARY KEY,
  mode          mode NOT NULL,
  realm_id      integer NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL CHECK (amount_micros > 0),
  destination   text NOT NULL,
  -- waiting: nothing signed is alive; live: one attempt is
  -- waiting <-> live; waiting | live -> settled | failed
  state         text NOT NULL DEFAULT 'waiting'
                CHECK (state IN ('waiting', 'live', 'settled', 'failed')),
  attempts      integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  -- What the attempts that ended without paying have cost.
  cost_lamports bigint NOT NULL DEFAULT 0 CHECK (cost_lamports >= 0),
  -- The worker that claimed it has it until then; afterwards it is anybody's.
  leased_until  timestamptz NOT NULL,
  problem       text,
  created_at    timestamptz(3) NOT NULL,
  -- Who called it off before anything was signed: the worker fails it and signs nothing. Only after
  -- a restore may it turn out to be paid, by an attempt that this database forgot.
  called_off_by text,
  CONSTRAINT called_off_is_not_signed CHECK (
    called_off_by IS NULL OR attempts = 0 AND state <> 'live')
);
-- It ends once, and what is paid to whom never changes.
CREATE TRIGGER payment_moves BEFORE UPDATE ON payment FOR EACH ROW
  WHEN (OLD.state IN ('settled', 'failed') OR NEW.amount_micros <> OLD.amount_micros
        OR NEW.destination <> OLD.destination OR NEW.agent_id <> OLD.agent_id
        OR OLD.called_off_by IS NOT NULL AND NEW.called_off_by IS DISTINCT FROM OLD.called_off_by)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER payment_stays BEFORE DELETE OR TRUNCATE ON payment
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- What is still to be made, the oldest first.
CREATE INDEX payment_open ON payment (mode, created_at) WHERE state IN ('waiting', 'live');

-- Everything that was ever signed: one attempt at a payment. Committed before it is sent.
CREATE TABLE submission (
  payment_id        id NOT NULL REFERENCES payment,
  attempt           integer NOT NULL CHECK (attempt >= 1),
  mode              mode NOT NULL,
  -- live -> settled; live -> dead, when it provably never pays
  state             text NOT NULL CHECK (state IN ('live', 'dead', 'settled')),
  raw               bytea NOT NULL,
  signature         text NOT NULL UNIQUE,
  -- By these the chain can prove that it never lands.
  blockhash         text NOT NULL,
  last_valid_height bigint NOT NULL,
  signed_slot       bigint NOT NULL,
  signed_at         timestamptz(3) NOT NULL DEFAULT moment(),
  -- Whether it opens the payee's token account, and what it costs at most.
  opens_account     boolean NOT NULL DEFAULT true,
  network_lamports  bigint NOT NULL DEFAULT 0 CHECK (network_lamports >= 0),
  -- When the worker looks for it next, and how often it did.
  next_check_at     timestamptz NOT NULL,
  checks            integer NOT NULL DEFAULT 0,
  in_doubt          boolean NOT NULL DEFAULT false,
  -- What a node said when it would not take it, if that can never change.
  refusal           text,
  outcome           text,
  fee_lamports      bigint,
  PRIMARY KEY (payment_id, attempt),
  CONSTRAINT ended_has_an_outcome CHECK ((state = 'live') = (outcome IS NULL))
);
-- Two attempts that are alive could both land: the last guard against paying twice.
CREATE UNIQUE INDEX submission_one_alive ON submission (payment_id) WHERE state = 'live';
-- What the worker has to look for.
CREATE INDEX submission_due ON submission (mode, next_check_at) WHERE state = 'live';
CREATE TRIGGER submission_is_final BEFORE UPDATE ON submission FOR EACH ROW
  WHEN (OLD.state <> 'live' OR NEW.raw <> OLD.raw OR NEW.signature <> OLD.signature)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER submission_stays BEFORE DELETE OR TRUNCATE ON submission
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The history of this database, as far as payments care. After a failover or a restore it goes on
-- in another one and may have forgotten attempts: nothing is signed until what it forgot can no
-- longer land, and payments from before are looked for on the chain first.
CREATE TABLE settlement_watch (
  mode               mode PRIMARY KEY,
  timeline           text NOT NULL,
  quiet_until_height bigint NOT NULL DEFAULT 0,
  careful_before     timestamptz,
  -- Attempts on the chain up to this slot that the database does not know are explained: by a
  -- restore that was noticed. Null until the first look that comes after the quiet.
  explained_slot     bigint CHECK (explained_slot >= 0),
  -- The life of the server in which a worker last found that nothing outside of the database knows
  -- more than it does: purchases are signed in no other. A snapshot that is put back begins one.
  life               text NOT NULL DEFAULT ''
);

-- 11  Purchases -----------------------------------------------------------------------------------

-- Where an origin is paid, as it told the service itself when somebody first bought there. Concerns
-- purchases only, so it raises no rules.
CREATE TABLE pin (
  realm_id   integer NOT NULL REFERENCES realm,
  -- Scheme, host and port.
  origin     text COLLATE "C" NOT NULL CHECK (length(origin) BETWEEN 8 AND 300),
  address    text NOT NULL CHECK (length(address) BETWEEN 32 AND 44),
  -- Another address that it named since, until an admin accepts it.
  offered    text CHECK (length(offered) BETWEEN 32 AND 44),
  offered_at timestamptz(3),
  -- The key that bought first, or accepted the change.
  created_by text NOT NULL,
  created_at timestamptz(3) NOT NULL,
  updated_at timestamptz(3) NOT NULL,
  PRIMARY KEY (realm_id, origin),
  CONSTRAINT offer_has_a_date CHECK ((offered IS NULL) = (offered_at IS NULL))
);
-- The list.
CREATE INDEX pin_by_age ON pin (realm_id, created_at, origin);
-- Those that wait for an admin, for the banner of the console.
CREATE INDEX pin_offered ON pin (realm_id, offered_at) WHERE offered IS NOT NULL;

-- Something bought from a seller that answers 402. Stored before the seller is asked. Its money is
-- a spend, written when the price is known.
CREATE TABLE purchase (
  id                id PRIMARY KEY,
  realm_id          integer NOT NULL,
  agent_id          id NOT NULL,
  mode              mode NOT NULL,
  -- What was asked for.
  url               text NOT NULL CHECK (length(url) <= 2048),
  method            text NOT NULL,
  host              text COLLATE "C" NOT NULL,
  origin            text NOT NULL,
  max_micros        micros,
  memo              text CHECK (length(memo) <= 200),
  metadata          text NOT NULL DEFAULT '{}',
  -- Whether the caller brought the seller's 402, and takes the payment there itself.
  brought           boolean NOT NULL,
  -- Of method, URL and body, to know a purchase again that has no key.
  digest            sha256 NOT NULL,
  idempotency_key   text COLLATE "C",
  fingerprint       bytea,
  created_by        text NOT NULL,
  created_at        timestamptz(3) NOT NULL,
  -- What became of it.
  -- open -> free | failed | rejected | pending | presented;
  -- pending -> failed | rejected | presented; presented -> paid | unpaid
  status            text NOT NULL CHECK (status IN ('open', 'free', 'failed', 'rejected', 'pending',
                                                    'presented', 'paid', 'unpaid')),
  reject_code       text,
  failure_code      text,
  -- What went wrong, in words that its agent may read.
  problem           text CHECK (length(problem) <= 1000),
  updated_at        timestamptz(3) NOT NULL,
  -- A process is at work on it until then: it asks the seller, or decides. Afterwards one that is
  -- open was interrupted.
  busy_until        timestamptz,
  -- Who resumed after a stop and cancelled what it held: nothing is signed for it any more.
  called_off_by     text,
  -- The standing of a refusal before a price was known: JSON as the API shows it.
  refusal           text,
  -- The terms that were decided on.
  protocol          text CHECK (protocol IN ('x402', 'mpp')),
  amount_micros     micros CHECK (amount_micros > 0),
  pay_to            text,
  spend_id          id UNIQUE,
  -- What was signed: once, ever. Committed before it leaves.
  raw               bytea,
  signature         text UNIQUE,
  fee_payer         text,
  blockhash         text,
  last_valid_height bigint,
  signed_slot       bigint,
  signed_at         timestamptz(3),
  -- The transaction that the seller says it became. A hint where to look, nothing more.
  claimed           text CHECK (length(claimed) <= 88),
  -- When the worker looks for it next, and how often it did.
  next_check_at     timestamptz,
  checks            integer NOT NULL DEFAULT 0,
  CONSTRAINT rejected_purchase_has_a_code CHECK ((status = 'rejected') = (reject_code IS NOT NULL)),
  CONSTRAINT failed_purchase_has_a_code CHECK ((status = 'failed') = (failure_code IS NOT NULL)),
  CONSTRAINT priced_purchase_has_a_spend CHECK (
    (spend_id IS NULL) = (amount_micros IS NULL) AND (spend_id IS NULL) = (protocol IS NULL)
    AND (spend_id IS NOT NULL OR status IN ('open', 'free', 'failed', 'rejected'))),
  CONSTRAINT signed_once CHECK (
    (status IN ('presented', 'paid', 'unpaid')) = (signature IS NOT NULL)
    AND (signature IS NULL) = (raw IS NULL) AND (signature IS NULL) = (fee_payer IS NULL)
    AND (signature IS NULL) = (blockhash IS NULL) AND (signature IS NULL) = (signed_slot IS NULL)
    AND (signature IS NULL) = (last_valid_height IS NULL)
    AND (signature IS NULL) = (signed_at IS NULL)),
  CONSTRAINT called_off_purchase_is_not_signed CHECK (called_off_by IS NULL OR signature IS NULL),
  CONSTRAINT only_presented_is_looked_for CHECK (
    (status = 'presented') = (next_check_at IS NOT NULL)),
  CONSTRAINT purchase_key_has_a_fingerprint CHECK (
    (idempotency_key IS NULL) = (fingerprint IS NULL)
    AND length(idempotency_key) BETWEEN 1 AND 255 AND octet_length(fingerprint) = 32),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE TRIGGER purchase_moves BEFORE UPDATE ON purchase FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '->' || NEW.status NOT IN (
    'open->free', 'open->failed', 'open->rejected', 'open->pending', 'open->presented',
    'pending->failed', 'pending->rejected', 'pending->presented',
    'presented->paid', 'presented->unpaid'))
  EXECUTE FUNCTION refuse_move();
-- One purchase, one signature: what was decided and signed never changes.
CREATE TRIGGER purchase_is_signed_once BEFORE UPDATE ON purchase FOR EACH ROW
  WHEN (OLD.signature IS NOT NULL AND (NEW.signature IS DISTINCT FROM OLD.signature
        OR NEW.raw IS DISTINCT FROM OLD.raw OR NEW.fee_payer <> OLD.fee_payer
        OR NEW.last_valid_height <> OLD.last_valid_height)
        OR OLD.spend_id IS NOT NULL AND (NEW.spend_id IS DISTINCT FROM OLD.spend_id
        OR NEW.amount_micros <> OLD.amount_micros OR NEW.pay_to IS DISTINCT FROM OLD.pay_to)
        OR NEW.agent_id <> OLD.agent_id OR NEW.url <> OLD.url OR NEW.host <> OLD.host)
  EXECUTE FUNCTION refuse_move();
-- Others submit what was signed here: a payment of ours beside it would pay twice.
CREATE FUNCTION refuse_second_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM payment p WHERE p.id = NEW.spend_id) THEN
    RAISE EXCEPTION 'settlement pays %: no purchase is signed for it', NEW.spend_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER purchase_is_paid_once BEFORE UPDATE ON purchase FOR EACH ROW
  WHEN (OLD.signature IS NULL AND NEW.signature IS NOT NULL)
  EXECUTE FUNCTION refuse_second_payment();
CREATE TRIGGER purchase_stays BEFORE DELETE OR TRUNCATE ON purchase
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- One request, one purchase; and the same without a key, of late.
CREATE UNIQUE INDEX purchase_key ON purchase (agent_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX purchase_by_digest ON purchase (agent_id, digest, created_at);
-- The list, and the same by agent, host and status.
CREATE INDEX purchase_by_age ON purchase (realm_id, created_at, id);
CREATE INDEX purchase_by_agent ON purchase (agent_id, created_at, id);
CREATE INDEX purchase_by_host ON purchase (realm_id, host, created_at, id);
CREATE INDEX purchase_by_status ON purchase (realm_id, status, created_at, id);
-- What is under way in a realm; those that were interrupted or never continued; those to look for.
CREATE INDEX purchase_under_way ON purchase (realm_id) WHERE status = 'open';
CREATE INDEX purchase_unsigned ON purchase (updated_at) WHERE status IN ('open', 'pending');
CREATE INDEX purchase_due ON purchase (mode, next_check_at) WHERE status = 'presented';
-- What may be on its way out of a wallet.
CREATE INDEX purchase_presented ON purchase (agent_id) WHERE status = 'presented';

-- What only the asking agent and admins may read of a purchase, sealed, and for a day: what was
-- sent (`order`), the header that pays (`header`), what came back (`response`).
CREATE TABLE purchase_secret (
  -- Purchase and kind: bound into the seal.
  owner          text COLLATE "C" PRIMARY KEY,
  purchase_id    id NOT NULL REFERENCES purchase,
  kind           text NOT NULL CHECK (kind IN ('order', 'header', 'response')),
  agent_id       id NOT NULL,
  master_version integer NOT NULL REFERENCES master_key,
  sealed         bytea NOT NULL,
  -- Of `sealed`, for the agent's quota.
  bytes          integer NOT NULL CHECK (bytes > 0),
  created_at     timestamptz(3) NOT NULL DEFAULT moment(),
  expires_at     timestamptz(3) NOT NULL,
  UNIQUE (purchase_id, kind)
);
-- Those to forget; what a rotation has yet to seal again; what an agent has, for its quota.
CREATE INDEX purchase_secret_to_forget ON purchase_secret (expires_at);
CREATE INDEX purchase_secret_by_master ON purchase_secret (master_version);
CREATE INDEX purchase_secret_by_agent ON purchase_secret (agent_id) INCLUDE (bytes);

-- Up to which history of the database (`history()`) every outflow of a wallet is known to be in the
-- books. After a failover a wallet signs no purchase before it is: what was forgotten may have
-- left. '' asks a worker to find out.
CREATE TABLE outflows_known (
  agent_id     id PRIMARY KEY REFERENCES agent,
  mode         mode NOT NULL,
  timeline     text NOT NULL DEFAULT '',
  -- What stands in the way, for people.
  problem      text CHECK (length(problem) <= 300),
  next_look_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Those to look at next.
CREATE INDEX outflows_known_due ON outflows_known (mode, next_look_at);

-- 12  Network cost --------------------------------------------------------------------------------

-- Payees of an account, whether their token account was there when last seen, and how often this
-- account paid for opening it.
CREATE TABLE payee_account (
  realm_id integer NOT NULL REFERENCES realm,
  address  text NOT NULL,
  is_open  boolean NOT NULL,
  opened   integer NOT NULL DEFAULT 0 CHECK (opened >= 0),
  -- The payment that last set out to open it.
  opener   id,
  PRIMARY KEY (realm_id, address)
);

-- What the payments of an account cost by the UTC day they were signed on.
CREATE TABLE network_cost (
  realm_id integer NOT NULL REFERENCES realm,
  day      date NOT NULL,
  lamports bigint NOT NULL CHECK (lamports >= 0),
  PRIMARY KEY (realm_id, day)
);
-- What all accounts cost of late: how long the fee payer lasts.
CREATE INDEX network_cost_by_day ON network_cost (day);

-- What the fee payer of a mode held when the worker last looked.
CREATE TABLE fee_payer_balance (
  mode     mode PRIMARY KEY,
  lamports bigint NOT NULL CHECK (lamports >= 0),
  seen_at  timestamptz(3) NOT NULL DEFAULT moment()
);

-- 13  Events --------------------------------------------------------------------------------------

-- What happened, written in the commit that caused it. Only the creation of a spend has no row: the
-- spend itself tells it (`spend.verdict`), under the same letters with `evt_`.
CREATE TABLE event (
  id         id PRIMARY KEY,
  realm_id   integer NOT NULL,
  type       text NOT NULL,
  agent_id   id,
  -- JSON, kept as text: it is made by us and only ever handed on, so nobody need parse it.
  data       text NOT NULL,
  created_at timestamptz(3) NOT NULL
);
-- The list of events, and the same by type and by agent.
CREATE INDEX event_by_age ON event (realm_id, created_at, id);
CREATE INDEX event_by_type ON event (realm_id, type, created_at, id);
CREATE INDEX event_by_agent ON event (agent_id, created_at, id);
-- Those that are old enough to go; rows lie in the order of their age.
CREATE INDEX event_to_forget ON event USING brin (created_at);

-- Where an account wants to be told.
CREATE TABLE webhook (
  id              id PRIMARY KEY,
  realm_id        integer NOT NULL REFERENCES realm,
  url             text NOT NULL CHECK (length(url) <= 2048),
  -- Bounded, because every event goes through them.
  events          text[] NOT NULL CHECK (cardinality(events) BETWEEN 1 AND 100),
  -- enabled <-> disabled; a person does both, the worker disables (reason gone or failing)
  status          text NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled')),
  disabled_reason text,
  -- Since when every attempt has failed; null while the last one went well.
  failing_since   timestamptz(3),
  created_at      timestamptz(3) NOT NULL,
  CONSTRAINT only_disabled_has_a_reason CHECK (status = 'disabled' OR disabled_reason IS NULL)
);
-- The list of webhooks; and whether a realm has any, for every event.
CREATE INDEX webhook_by_age ON webhook (realm_id, created_at, id);

-- The secrets of a webhook: one in force, and those before it that still sign along. The owner is
-- bound into the seal, so that a sealed secret moved to another webhook does not open.
CREATE TABLE webhook_secret (
  owner          text COLLATE "C" PRIMARY KEY,
  webhook_id     id NOT NULL REFERENCES webhook ON DELETE CASCADE,
  number         integer NOT NULL CHECK (number >= 1),
  master_version integer NOT NULL REFERENCES master_key,
  sealed         bytea NOT NULL,
  -- null -> a date, when the next one comes
  signs_until    timestamptz(3),
  UNIQUE (webhook_id, number)
);
CREATE UNIQUE INDEX webhook_secret_in_force ON webhook_secret (webhook_id)
  WHERE signs_until IS NULL;
-- What a rotation has yet to seal again.
CREATE INDEX webhook_secret_by_master ON webhook_secret (master_version);

-- An event on its way to one webhook; the row is written with its event, the worker does the rest.
--
-- No foreign key to the event, because a spend's creation has none; and none to the webhook: it
-- would make every event lock its webhooks' rows, and deleting a webhook would delete months of
-- deliveries in one request. Deliveries of a webhook that is gone are never claimed; the worker
-- sweeps them up.
CREATE TABLE delivery (
  id              id PRIMARY KEY,
  webhook_id      id NOT NULL,
  event_id        id NOT NULL,
  -- pending -> delivered | failed
  status          text NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'delivered', 'failed')),
  attempts        jsonb NOT NULL DEFAULT '[]',
  attempt_count   integer NOT NULL DEFAULT 0,
  next_attempt_at timestamptz(3),
  -- The worker that claimed it has it until then; afterwards it is anybody's.
  leased_until    timestamptz(3),
  created_at      timestamptz(3) NOT NULL,
  CONSTRAINT only_pending_is_due CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
  CONSTRAINT only_pending_is_leased CHECK (leased_until IS NULL OR status = 'pending')
);
-- By webhook first: who claims jumps from webhook to webhook, so that a long queue of one hides
-- nobody else's.
CREATE INDEX delivery_due ON delivery (webhook_id, next_attempt_at) WHERE status = 'pending';
-- How many of a webhook are under way.
CREATE INDEX delivery_leased ON delivery (webhook_id) WHERE leased_until IS NOT NULL;
-- A webhook's list.
CREATE INDEX delivery_by_webhook ON delivery (webhook_id, created_at, id);
-- Those that are old enough to go; rows lie in the order of their age.
CREATE INDEX delivery_to_forget ON delivery USING brin (created_at);

-- 14  The audit log -------------------------------------------------------------------------------

-- Who did what, with what was before and after. Secrets never get here.
CREATE TABLE audit_log (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- What a line is called outside: the number would tell one account how much the others do.
  line_id    id NOT NULL,
  at         timestamptz(3) NOT NULL DEFAULT moment(),
  -- null for what concerns the service itself
  realm_id   integer REFERENCES realm,
  actor      text NOT NULL,
  request_id text NOT NULL,
  action     text NOT NULL,
  subject    text NOT NULL,
  before     json,
  after      json
);
-- The list of lines, and what was done to one subject.
CREATE INDEX audit_log_by_realm ON audit_log (realm_id, at, line_id);
CREATE INDEX audit_log_by_subject ON audit_log (realm_id, subject, id);
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- 15  Time machine --------------------------------------------------------------------------------

-- A question about the past: what a draft would have decided of recorded requests.
CREATE TABLE backtest (
  id           id PRIMARY KEY,
  realm_id     integer NOT NULL REFERENCES realm,
  -- JSON of what was asked, as `backtest/model.py` has it.
  asked        text NOT NULL,
  starts_at    timestamptz(3) NOT NULL,
  ends_at      timestamptz(3) NOT NULL,
  created_by   text NOT NULL,
  created_at   timestamptz(3) NOT NULL DEFAULT moment(),
  -- queued -> running -> done | failed
  status       text NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'done', 'failed')),
  percent      smallint NOT NULL DEFAULT 0 CHECK (percent BETWEEN 0 AND 100),
  -- The worker that runs it, and until when it has it: afterwards another begins anew.
  holder       text,
  leased_until timestamptz,
  tries        smallint NOT NULL DEFAULT 0,
  problem      text,
  -- JSON of what was found.
  result       text,
  finished_at  timestamptz(3),
  CONSTRAINT backtest_has_a_span CHECK (starts_at < ends_at),
  CONSTRAINT done_has_a_result CHECK ((status = 'done') = (result IS NOT NULL)),
  CONSTRAINT failed_has_a_problem CHECK ((status = 'failed') = (problem IS NOT NULL)),
  CONSTRAINT ended_has_a_moment CHECK ((status IN ('done', 'failed')) = (finished_at IS NOT NULL)),
  CONSTRAINT running_is_held CHECK ((status = 'running') = (holder IS NOT NULL)
                                    AND (holder IS NULL) = (leased_until IS NULL))
);
CREATE TRIGGER backtest_ends_once BEFORE UPDATE ON backtest FOR EACH ROW
  WHEN (OLD.status IN ('done', 'failed')) EXECUTE FUNCTION refuse_move();
-- What is to be done, the oldest first; what may be forgotten.
CREATE INDEX backtest_open ON backtest (created_at) WHERE status IN ('queued', 'running');
CREATE INDEX backtest_to_forget ON backtest (created_at);

-- What would have been decided differently, in the order of the replay.
CREATE TABLE backtest_change (
  backtest_id   id NOT NULL REFERENCES backtest ON DELETE CASCADE,
  number        integer NOT NULL,
  spend_id      id NOT NULL,
  agent_id      id NOT NULL,
  amount_micros micros NOT NULL,
  was           text NOT NULL,
  would         text NOT NULL,
  rule          text NOT NULL,
  PRIMARY KEY (backtest_id, number)
);

-- A change of an agent's policy that is not in force: a backtest that keeps running.
CREATE TABLE draft (
  agent_id       id PRIMARY KEY,
  realm_id       integer NOT NULL,
  -- Another one each time it is written.
  id             id NOT NULL UNIQUE,
  -- The version that it changes.
  base_version   integer NOT NULL,
  -- JSON of the change, as `policy/model.py` has it.
  change         text NOT NULL,
  created_by     text NOT NULL,
  since          timestamptz(3) NOT NULL,
  -- How far a worker has followed, and what it found: how many requests, how many of them would
  -- have been decided differently, and the last of those (JSON).
  followed_until timestamptz(3) NOT NULL,
  decided        counted NOT NULL DEFAULT 0,
  differing      counted NOT NULL DEFAULT 0,
  differences    text NOT NULL DEFAULT '[]',
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
-- How many an account has.
CREATE INDEX draft_by_realm ON draft (realm_id);

-- 16  Workers -------------------------------------------------------------------------------------

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

-- What one worker at a time does: the one that holds the lease, until it ends or is given up.
CREATE TABLE lease (
  name   text PRIMARY KEY,
  holder text NOT NULL,
  until  timestamptz NOT NULL
);

-- Wallets whose commits raise, by the duty that could not be done: each is tried alone and rarely,
-- so that it stops no other. No foreign key, because the wallet's row may be what is broken.
CREATE TABLE quarantine (
  agent_id    id NOT NULL,
  duty        text NOT NULL CHECK (duty IN ('settle', 'expire', 'deposit', 'stop',
                                                'purchase')),
  problem     text NOT NULL,
  tries       integer NOT NULL DEFAULT 1 CHECK (tries >= 1),
  since       timestamptz(3) NOT NULL,
  next_try_at timestamptz NOT NULL,
  PRIMARY KEY (agent_id, duty)
);

-- 17  Functions -----------------------------------------------------------------------------------

-- All that a decision about agents rests on. With `lock` it is the one way to an agent's money and
-- policy: it locks the wallets' rows in the order of their ids until the transaction ends, then
-- reads in a statement of its own, so that nothing read is older than the locks. Without, it locks
-- nothing, for those who only look. Agents that are not in these realms are left out.
CREATE FUNCTION read_agents(agent_ids text[], realm_ids integer[], lock boolean)
RETURNS TABLE (
  agent_id id, realm_id integer, address text, mint text, wallet_status text,
  credits_posted bigint, debits_posted bigint, debits_pending bigint, transfers bigint,
  decisions bigint, pending_count integer, is_low boolean, last_funded_at timestamptz,
  now timestamptz, windows_at timestamptz, day_micros bigint, day_lamports bigint,
  numbers bigint[], agent_status text, policy_version integer, budget_id id, rules bigint,
  realm_rules bigint, stopped boolean, life text)
LANGUAGE plpgsql AS $$
DECLARE
  read_at timestamptz;
BEGIN
  IF lock THEN
    PERFORM FROM wallet w
      WHERE w.agent_id = ANY (agent_ids) AND w.realm_id = ANY (realm_ids)
      ORDER BY w.agent_id FOR NO KEY UPDATE;
  END IF;
  read_at := moment();
  RETURN QUERY
    SELECT w.agent_id, w.realm_id, w.address, w.mint, w.status, w.credits_posted::bigint,
           w.debits_posted::bigint, w.debits_pending::bigint, w.transfers::bigint,
           w.decisions::bigint, w.pending_count::integer, w.is_low, w.last_funded_at::timestamptz,
           greatest(read_at, w.windows_at), w.windows_at::timestamptz, w.day_micros::bigint,
           w.day_lamports::bigint,
           ARRAY[w.decisions, w.hour_micros, w.hour_count, w.day_micros, w.day_count,
                 w.week_micros, w.week_count, w.month_micros, w.month_count, w.life_micros,
                 w.life_count]::bigint[],
           a.status, a.policy_version, a.budget_id, w.rules, r.rules, r.stopped_at IS NOT NULL,
           server_life()
      FROM wallet w
      JOIN agent a ON a.id = w.agent_id
      JOIN realm r ON r.id = w.realm_id
     WHERE w.agent_id = ANY (agent_ids) AND w.realm_id = ANY (realm_ids);
END $$;

-- How many purchases are being made: of the account, of the agent, from the host. Those of a realm
-- that begin take turns, so that each counts the one before; a statement that had to wait for its
-- turn would not see it, so this is a function, whose every statement looks anew.
CREATE FUNCTION purchases_under_way(realm integer, buyer text, seller text)
RETURNS TABLE (of_account bigint, of_agent bigint, of_host bigint)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(17486, realm);
  RETURN QUERY
    SELECT count(*), count(*) FILTER (WHERE p.agent_id = buyer),
           count(*) FILTER (WHERE p.host = seller)
      FROM purchase p
     WHERE p.realm_id = realm AND p.status = 'open';
END $$;

-- Locks these wallets, moves their windows that are over to `usage`, and begins those of now, or of
-- the moment that their meters were closed at. Returns the moment of it.
CREATE FUNCTION close_windows(agent_ids text[], closed_at timestamptz)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
  read_at timestamptz;
BEGIN
  PERFORM FROM wallet w WHERE w.agent_id = ANY (agent_ids) ORDER BY w.agent_id FOR NO KEY UPDATE;
  read_at := coalesce(closed_at, moment());
  INSERT INTO usage (agent_id, window_kind, window_start, micros, spends, lamports)
  SELECT w.agent_id, k.kind, date_trunc(k.kind, w.windows_at, 'UTC'), k.micros, k.spends, k.lamports
    FROM wallet w CROSS JOIN LATERAL (VALUES
      ('hour', w.hour_micros, w.hour_count, 0), ('day', w.day_micros, w.day_count, w.day_lamports),
      ('week', w.week_micros, w.week_count, 0), ('month', w.month_micros, w.month_count, 0))
      AS k (kind, micros, spends, lamports)
   WHERE w.agent_id = ANY (agent_ids) AND (k.spends > 0 OR k.lamports > 0)
     AND date_trunc(k.kind, read_at, 'UTC') > date_trunc(k.kind, w.windows_at, 'UTC');
  UPDATE wallet w
     SET windows_at = read_at, active_on = (read_at AT TIME ZONE 'UTC')::date,
         hour_micros = 0, hour_count = 0,
         day_micros = CASE WHEN s.day THEN w.day_micros ELSE 0 END,
         day_count = CASE WHEN s.day THEN w.day_count ELSE 0 END,
         day_lamports = CASE WHEN s.day THEN w.day_lamports ELSE 0 END,
         week_micros = CASE WHEN s.week THEN w.week_micros ELSE 0 END,
         week_count = CASE WHEN s.week THEN w.week_count ELSE 0 END,
         month_micros = CASE WHEN s.month THEN w.month_micros ELSE 0 END,
         month_count = CASE WHEN s.month THEN w.month_count ELSE 0 END
    FROM (SELECT o.agent_id,
                 date_trunc('day', read_at, 'UTC') = date_trunc('day', o.windows_at, 'UTC') AS day,
                 date_trunc('week', read_at, 'UTC') = date_trunc('week', o.windows_at, 'UTC')
                   AS week,
                 date_trunc('month', read_at, 'UTC') = date_trunc('month', o.windows_at, 'UTC')
                   AS month
            FROM wallet o
           WHERE o.agent_id = ANY (agent_ids)
             AND (o.windows_at IS NULL OR date_trunc('hour', read_at, 'UTC')
                                          > date_trunc('hour', o.windows_at, 'UTC'))) s
   WHERE w.agent_id = s.agent_id;
  RETURN read_at;
END $$;

-- The same for meters, whose windows are forgotten when they are over. The moment is no earlier
-- than what any of them has reached: time never runs back. Wallets are locked before meters.
CREATE FUNCTION close_meters(meter_ids text[], not_before timestamptz)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
  read_at timestamptz;
BEGIN
  PERFORM FROM meter m WHERE m.id = ANY (meter_ids) ORDER BY m.id FOR NO KEY UPDATE;
  SELECT greatest(not_before, moment(), max(m.windows_at)) INTO read_at
    FROM meter m WHERE m.id = ANY (meter_ids);
  UPDATE meter m
     SET windows_at = read_at, hour_micros = 0, hour_count = 0,
         day_micros = CASE WHEN s.day THEN m.day_micros ELSE 0 END,
         day_count = CASE WHEN s.day THEN m.day_count ELSE 0 END,
         week_micros = CASE WHEN s.week THEN m.week_micros ELSE 0 END,
         week_count = CASE WHEN s.week THEN m.week_count ELSE 0 END,
         month_micros = CASE WHEN s.month THEN m.month_micros ELSE 0 END,
         month_count = CASE WHEN s.month THEN m.month_count ELSE 0 END
    FROM (SELECT o.id,
                 date_trunc('day', read_at, 'UTC') = date_trunc('day', o.windows_at, 'UTC') AS day,
                 date_trunc('week', read_at, 'UTC') = date_trunc('week', o.windows_at, 'UTC')
                   AS week,
                 date_trunc('month', read_at, 'UTC') = date_trunc('month', o.windows_at, 'UTC')
                   AS month
            FROM meter o
           WHERE o.id = ANY (meter_ids)
             AND (o.windows_at IS NULL OR date_trunc('hour', read_at, 'UTC')
                                          > date_trunc('hour', o.windows_at, 'UTC'))) s
   WHERE m.id = s.id;
  RETURN read_at;
END $$;

-- Gives back to those windows of meters that contain these moments and are still open, and notes
-- with each spend where that was. The caller has locked the wallets; meters come after them, in the
-- order of their ids.
CREATE FUNCTION release_meters(
  meter_ids text[], moments timestamptz[], micros bigint[], spend_ids text[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM meter m WHERE m.id = ANY (meter_ids) ORDER BY m.id FOR NO KEY UPDATE;
  UPDATE spend s
     SET released_after = r.places
    FROM (SELECT g.spend_id, array_agg(m.decisions::bigint ORDER BY g.place) AS places
            FROM unnest($1, $4) WITH ORDINALITY AS g (id, spend_id, place)
            JOIN meter m ON m.id = g.id
           GROUP BY g.spend_id) r
   WHERE s.id = r.spend_id;
  UPDATE meter m
     SET decisions = m.decisions + s.releases,
         hour_micros = m.hour_micros - s.hour_micros, hour_count = m.hour_count - s.hour_count,
         day_micros = m.day_micros - s.day_micros, day_count = m.day_count - s.day_count,
         week_micros = m.week_micros - s.week_micros, week_count = m.week_count - s.week_count,
         month_micros = m.month_micros - s.month_micros,
         month_count = m.month_count - s.month_count,
         life_micros = m.life_micros - s.micros, life_count = m.life_count - s.releases
    FROM (SELECT g.id, count(*) AS releases, sum(g.micros) AS micros,
                 coalesce(sum(g.micros) FILTER (WHERE hour), 0) AS hour_micros,
                 count(*) FILTER (WHERE hour) AS hour_count,
                 coalesce(sum(g.micros) FILTER (WHERE day), 0) AS day_micros,
                 count(*) FILTER (WHERE day) AS day_count,
                 coalesce(sum(g.micros) FILTER (WHERE week), 0) AS week_micros,
                 count(*) FILTER (WHERE week) AS week_count,
                 coalesce(sum(g.micros) FILTER (WHERE month), 0) AS month_micros,
                 count(*) FILTER (WHERE month) AS month_count
            FROM (SELECT r.id, r.micros, date_trunc('hour', o.windows_at, 'UTC') <= r.at AS hour,
                         date_trunc('day', o.windows_at, 'UTC') <= r.at AS day,
                         date_trunc('week', o.windows_at, 'UTC') <= r.at AS week,
                         date_trunc('month', o.windows_at, 'UTC') <= r.at AS month
                    FROM unnest($1, $2, $3) AS r (id, at, micros)
                    JOIN meter o ON o.id = r.id) g
           GROUP BY g.id) s
   WHERE m.id = s.id;
END $$;

-- Adds to the windows that contain these moments, open or closed; what is given back is negative.
-- A cost on the chain counts even beyond the cap, because it was paid. The caller has locked the
-- wallets.
CREATE FUNCTION add_to_windows(
  agent_ids text[], moments timestamptz[], micros bigint[], spends bigint[], lamports bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH given AS (
    SELECT g.*, date_trunc('hour', w.windows_at, 'UTC') <= g.at AS hour,
           date_trunc('day', w.windows_at, 'UTC') <= g.at AS day,
           date_trunc('week', w.windows_at, 'UTC') <= g.at AS week,
           date_trunc('month', w.windows_at, 'UTC') <= g.at AS month
      FROM unnest($1, $2, $3, $4, $5) AS g (agent_id, at, micros, spends, lamports)
      JOIN wallet w ON w.agent_id = g.agent_id)
  UPDATE wallet w
     SET hour_micros = w.hour_micros + s.hour_micros, hour_count = w.hour_count + s.hour_count,
         day_micros = w.day_micros + s.day_micros, day_count = w.day_count + s.day_count,
         week_micros = w.week_micros + s.week_micros, week_count = w.week_count + s.week_count,
         month_micros = w.month_micros + s.month_micros,
         month_count = w.month_count + s.month_count,
         life_micros = w.life_micros + s.micros, life_count = w.life_count + s.spends,
         day_lamports = w.day_lamports + s.lamports,
         day_cap_lamports = greatest(w.day_cap_lamports, w.day_lamports + s.lamports)
    FROM (SELECT agent_id, sum(g.micros) AS micros, sum(g.spends) AS spends,
                 coalesce(sum(g.micros) FILTER (WHERE hour), 0) AS hour_micros,
                 coalesce(sum(g.spends) FILTER (WHERE hour), 0) AS hour_count,
                 coalesce(sum(g.micros) FILTER (WHERE day), 0) AS day_micros,
                 coalesce(sum(g.spends) FILTER (WHERE day), 0) AS day_count,
                 coalesce(sum(g.lamports) FILTER (WHERE day), 0) AS lamports,
                 coalesce(sum(g.micros) FILTER (WHERE week), 0) AS week_micros,
                 coalesce(sum(g.spends) FILTER (WHERE week), 0) AS week_count,
                 coalesce(sum(g.micros) FILTER (WHERE month), 0) AS month_micros,
                 coalesce(sum(g.spends) FILTER (WHERE month), 0) AS month_count
            FROM given g GROUP BY agent_id) s
   WHERE w.agent_id = s.agent_id;
  UPDATE usage u
     SET micros = u.micros + s.micros, spends = u.spends + s.spends,
         lamports = u.lamports + s.lamports
    FROM (SELECT g.agent_id, k.kind, date_trunc(k.kind, g.at, 'UTC') AS start,
                 sum(g.micros) AS micros, sum(g.spends) AS spends,
                 sum(CASE k.kind WHEN 'day' THEN g.lamports ELSE 0 END) AS lamports
            FROM unnest($1, $2, $3, $4, $5) AS g (agent_id, at, micros, spends, lamports)
            JOIN wallet w ON w.agent_id = g.agent_id
           CROSS JOIN unnest(ARRAY['hour', 'day', 'week', 'month']) AS k (kind)
           WHERE date_trunc(k.kind, w.windows_at, 'UTC') > g.at
           GROUP BY 1, 2, 3) s
   WHERE u.agent_id = s.agent_id AND u.window_kind = s.kind AND u.window_start = s.start;
END $$;

-- What an agent used in the UTC day of a moment, open or closed. The caller has locked the wallet.
CREATE FUNCTION used_in_day(agent text, at timestamptz)
RETURNS TABLE (micros bigint, lamports bigint) LANGUAGE sql STABLE
BEGIN ATOMIC
  SELECT w.day_micros::bigint, w.day_lamports::bigint
    FROM wallet w
   WHERE w.agent_id = agent AND date_trunc('day', w.windows_at, 'UTC') <= at
  UNION ALL
  SELECT u.micros::bigint, u.lamports
    FROM wallet w JOIN usage u ON u.agent_id = w.agent_id
   WHERE w.agent_id = agent AND date_trunc('day', w.windows_at, 'UTC') > at
     AND u.window_kind = 'day' AND u.window_start = date_trunc('day', at, 'UTC');
END;

-- Whether each number of a meter lies between its bounds: least and most, in the meter's order.
CREATE FUNCTION within(
  bounds bigint[], hour_micros bigint, hour_count bigint, day_micros bigint, day_count bigint,
  week_micros bigint, week_count bigint, month_micros bigint, month_count bigint,
  life_micros bigint, life_count bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE
  RETURN hour_micros BETWEEN bounds[1] AND bounds[2] AND hour_count BETWEEN bounds[3] AND bounds[4]
     AND day_micros BETWEEN bounds[5] AND bounds[6] AND day_count BETWEEN bounds[7] AND bounds[8]
     AND week_micros BETWEEN bounds[9] AND bounds[10]
     AND week_count BETWEEN bounds[11] AND bounds[12]
     AND month_micros BETWEEN bounds[13] AND bounds[14]
     AND month_count BETWEEN bounds[15] AND bounds[16]
     AND life_micros BETWEEN bounds[17] AND bounds[18]
     AND life_count BETWEEN bounds[19] AND bounds[20];

-- What a meter counted, once a batch has added to it. STABLE like what it calls, or it would not be
-- inlined: as a call of its own it costs more than all that it works out.
CREATE FUNCTION numbers_after(
  decisions bigint, hour_micros bigint, hour_count bigint, day_micros bigint, day_count bigint,
  week_micros bigint, week_count bigint, month_micros bigint, month_count bigint,
  life_micros bigint, life_count bigint, more_decisions bigint, more_micros bigint,
  more_moves bigint)
RETURNS text LANGUAGE sql STABLE
  RETURN concat_ws(',', decisions + more_decisions, hour_micros + more_micros,
                   hour_count + more_moves, day_micros + more_micros, day_count + more_moves,
                   week_micros + more_micros, week_count + more_moves, month_micros + more_micros,
                   month_count + more_moves, life_micros + more_micros, life_count + more_moves);

-- By spend of a batch, the numbers of its meters that it is judged on: the wallet's, then those of
-- its uses. The caller has locked wallets and meters, and has written nothing yet. In plpgsql,
-- which keeps its plan.
CREATE FUNCTION meters_of(
  spend_ids text[], spend_agent_ids text[], decisions_before integer[], micros_before bigint[],
  moves_before integer[], use_spends integer[], use_meters text[], use_decisions integer[],
  use_micros bigint[], use_moves integer[])
RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
  SELECT array_agg(
           '{' || concat_ws(',',
             numbers_after(w.decisions, w.hour_micros, w.hour_count, w.day_micros, w.day_count,
                           w.week_micros, w.week_count, w.month_micros, w.month_count,
                           w.life_micros, w.life_count, d.decisions, d.micros, d.moves),
             u.numbers) || '}' ORDER BY d.place)
    FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY
           AS d (id, agent_id, decisions, micros, moves, place)
    JOIN wallet w ON w.agent_id = d.agent_id
    LEFT JOIN (
      SELECT s.spend, string_agg(
               numbers_after(m.decisions, m.hour_micros, m.hour_count, m.day_micros, m.day_count,
                             m.week_micros, m.week_count, m.month_micros, m.month_count,
                             m.life_micros, m.life_count, s.decisions, s.micros, s.moves),
               ',' ORDER BY s.place) AS numbers
        FROM unnest($6, $7, $8, $9, $10) WITH ORDINALITY
               AS s (spend, meter_id, decisions, micros, moves, place)
        JOIN meter m ON m.id = s.meter_id
       GROUP BY s.spend) u ON u.spend = d.place);
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
-- Limits: a wallet that has some is guarded by its windows too (`wallet_bounds`, least and most of
-- each number of a meter but the first). Meters are locked after the wallets, guarded alike, and
-- shared, so that a batch with meters is written whole or not at all. `uses` says which spends they
-- count, and what the batch had added to them before each.
--
-- What a spend keeps of the numbers it was judged on (`used`, in the order of the engine's `Used`),
-- and what its transfer says of the wallet, follows from the values found here. Of a metered batch
-- the numbers of the meters are returned by wallet, in the order of its spends: a second look for
-- them could fail after the commit.
CREATE FUNCTION write_spends(
  decided_in text, locked_at timestamptz, approval_seconds integer,
  -- By wallet: what it is decided by, what the batch adds to it, and between which values.
  agent_ids text[], realm_ids integer[], rules bigint[], realm_rules bigint[], hours timestamptz[],
  decisions integer[], moves integer[], micros bigint[], lamports bigint[], pendings integer[],
  caps_micros bigint[], caps_lamports bigint[],
  spent_least bigint[], spent_most bigint[], available_least bigint[], available_most bigint[],
  lamports_least bigint[], lamports_most bigint[], pending_least integer[], pending_most integer[],
  -- By spend: what was asked and decided, and what the batch had added to its wallet before it.
  spend_ids text[], spend_agent_ids text[], amounts bigint[], recipients text[], pay_tos text[],
  verdicts text[], reject_codes text[], memos text[], metadatas text[], policy_versions integer[],
  all_terms text[], networks text[], created_bys text[], costs bigint[],
  decisions_before integer[], moves_before integer[], micros_before bigint[],
  lamports_before bigint[], pendings_before integer[], total_recipients text[],
  idempotency_keys text[], fingerprints text[],
  -- Of the one spend of the batch, where it pays for a purchase.
  purchase text,
  -- Of batches that are metered: by wallet, by meter, and by spend and meter.
  wallet_bounds text[], wallet_budgets text[],
  meter_ids text[], meter_rules bigint[], meter_decisions integer[], meter_micros bigint[],
  meter_moves integer[], meter_bounds text[],
  use_spends integer[], use_meters text[], use_decisions integer[], use_micros bigint[],
  use_moves integer[])
RETURNS TABLE (
  agent_id id, at timestamptz, credits_posted bigint, debits_posted bigint, debits_pending bigint,
  decisions_until bigint, transfers_until bigint, spent_micros bigint, lamports_until bigint,
  pending_until integer, meters_until text[])
-- The plan is the same for every batch, and to make it takes longer than to write a spend.
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  read_at timestamptz;
  meters text[];
  written_count bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'spends are written at READ COMMITTED'
      USING ERRCODE = 'invalid_transaction_state';
  END IF;
  -- What was acknowledged is on the disk, whatever a role or a database has as its default.
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  IF locked_at IS NULL THEN
    PERFORM FROM wallet w WHERE w.agent_id = ANY ($4) ORDER BY w.agent_id FOR NO KEY UPDATE;
    IF decided_in <> server_life() THEN
      RETURN;
    END IF;
  END IF;
  read_at := coalesce(locked_at, moment());
  IF meter_ids IS NOT NULL THEN
    IF locked_at IS NULL THEN
      PERFORM FROM meter m WHERE m.id = ANY (meter_ids) ORDER BY m.id FOR NO KEY UPDATE;
    END IF;
    -- One moment for all, no earlier than what any of them has reached.
    SELECT greatest(read_at, max(o.windows_at)) INTO read_at
      FROM (SELECT m.windows_at FROM meter m WHERE m.id = ANY (meter_ids)
            UNION ALL SELECT w.windows_at FROM wallet w WHERE w.agent_id = ANY ($4)) o;
    PERFORM FROM unnest(meter_ids, meter_rules, meter_bounds) AS g (id, rules, bounds)
      LEFT JOIN meter m ON m.id = g.id AND m.rules = g.rules
       AND date_trunc('hour', m.windows_at, 'UTC') = date_trunc('hour', read_at, 'UTC')
       AND within(g.bounds::bigint[], m.hour_micros, m.hour_count, m.day_micros, m.day_count,
                  m.week_micros, m.week_count, m.month_micros, m.month_count, m.life_micros,
                  m.life_count)
     WHERE m.id IS NULL;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF wallet_bounds IS NOT NULL THEN
    meters := meters_of(
      $24, $25, decisions_before, micros_before, moves_before, use_spends, use_meters,
      use_decisions, use_micros, use_moves);
  END IF;
  RETURN QUERY
  WITH guarded AS MATERIALIZED (
    -- The bounds are read once, and not for each of the windows.
    SELECT g.*, g.bounds_text::bigint[] AS bounds FROM unnest(
      $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
      $47, $48)
      AS g (agent_id, realm_id, rules, realm_rules, hour, decisions, moves, micros, lamports,
            pendings, cap_micros, cap_lamports, spent_least, spent_most, available_least,
            available_most, lamports_least, lamports_most, pending_least, pending_most,
            bounds_text, budget_id)
  ), written AS (
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
      FROM guarded g JOIN realm r ON r.id = g.realm_id
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
                 w.transfers + d.moves_before] || d.meters::bigint[] AS used
      FROM unnest($24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39,
                  $40, $41, $42, $43, $44, $45, meters)
        AS d (id, agent_id, amount, recipient, pay_to, verdict, reject_code, memo, metadata,
              policy_version, terms, network, created_by, cost, decisions_before, moves_before,
              micros_before, lamports_before, pendings_before, total_recipient, key, fingerprint,
              meters)
      JOIN written w ON w.agent_id = d.agent_id
  ), spends AS (
    INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, memo, metadata,
                       network, created_by, created_at, purchase_id, budget_id, idempotency_key,
                       fingerprint, status, reject_code, updated_at, verdict, terms, used,
                       policy_version, decision_number, expires_at, network_lamports)
    SELECT id, realm_id, agent_id, amount, recipient, nullif(pay_to, ''), memo, metadata,
           network, created_by, at, purchase, nullif(budget_id, ''), nullif(key, ''),
           decode(nullif(fingerprint, ''), 'hex'), verdict, nullif(reject_code, ''), at, verdict,
           terms, used, policy_version, decision_number,
           CASE WHEN verdict = 'pending' THEN at + make_interval(secs => approval_seconds) END,
           CASE WHEN verdict = 'rejected' THEN 0 ELSE cost END
      FROM decided
  ), transfers AS (
    INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros, credits_posted_after,
                          debits_posted_after, debits_pending_after, created_at)
    SELECT agent_id, transfer_number, 'reserve', id, amount, credits_posted, debits_posted,
           reserved + amount, at
      FROM decided WHERE verdict <> 'rejected'
  ), payments AS (
    INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,
                         created_at)
    SELECT id, mode, realm_id, agent_id, amount, pay_to, clock_timestamp(), at
      FROM decided WHERE verdict = 'approved' AND purchase IS NULL
  ), totals AS (
    INSERT INTO total_delta (realm_id, agent_id, day, recipient, spend_count, rejected_count,
                             settled_micros)
    SELECT realm_id, agent_id, (at AT TIME ZONE 'UTC')::date, total_recipient, 1,
           (verdict = 'rejected')::int, 0
      FROM decided
  ), deliveries AS (
    -- The id of a delivery has the letters of the spend's time, then of what it joins.
    INSERT INTO delivery (id, webhook_id, event_id, created_at, next_attempt_at)
    SELECT 'dlv_' || substr(d.id, 5, 10) || left(md5(d.id || h.id), 16), h.id,
           'evt_' || substr(d.id, 5), d.at, clock_timestamp()
      FROM decided d JOIN webhook h ON h.realm_id = d.realm_id
     WHERE h.status = 'enabled' AND h.events && ARRAY['*', 'transaction.' || d.verdict]
  )
  SELECT w.agent_id, w.at::timestamptz, w.credits_posted, w.debits_posted, w.debits_pending,
         w.decisions, w.transfers, w.spent_micros, w.lamports, w.pendings,
         m.numbers
    FROM written w
    LEFT JOIN (SELECT d.agent_id, array_agg(d.meters ORDER BY d.decisions_before) AS numbers
                 FROM decided d WHERE d.meters IS NOT NULL GROUP BY d.agent_id) m
      ON m.agent_id = w.agent_id;
  IF meter_ids IS NOT NULL THEN
    GET DIAGNOSTICS written_count = ROW_COUNT;
    IF written_count < cardinality($4) THEN
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
      FROM unnest(meter_ids, meter_decisions, meter_micros, meter_moves)
             AS u (id, decisions, micros, moves)
     WHERE m.id = u.id;
  END IF;
END $$;

-- One round of a delivery worker in one round trip: records what became of its claims, then claims
-- up to `most` deliveries that are due.
--
-- Locks the deliveries it records, then their webhooks in the order of their ids, then, by an
-- advisory lock until the transaction ends, the claiming itself: one worker claims at a time, and
-- counts what is under way in a statement that begins after the lock, so no bound is ever passed.
--
-- Who gets the room. Every webhook's first, then every second, and so on; no webhook has more than
-- `per_webhook` under way; one that failed last gets one at a time, and all such together
-- `most_failing`. Room is shared among accounts: each claim goes to the account that has the fewest
-- under way, and none has more under way than are left free. So one account alone gets half of the
-- room, two a third each, and the next one always finds some, however many receivers of others
-- hang. The same for the part of the room that failing webhooks may take.
--
-- The query jumps over the index from webhook to webhook, so a long queue of one costs no more than
-- a short one. An event without a row has nulls: a spend tells it.
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
           e.created_at::timestamptz, r.mode::text
      FROM claimed c
      JOIN webhook h ON h.id = c.webhook_id
      JOIN realm r ON r.id = h.realm_id
      LEFT JOIN event e ON e.id = c.event_id;
END $$;
