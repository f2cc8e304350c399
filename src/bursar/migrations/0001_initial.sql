-- The whole ground: accounts and keys, agents and policies, wallets and their ledger, spends,
-- statistics, events with their deliveries, idempotency, the audit log and the seal.
--
-- Rules that hold all through:
--   * money is BIGINT micro-units, never negative;
--   * moments are timestamptz(3), so what the API shows is what is compared;
--   * ids are text in the "C" collation, so they order by time on every server;
--   * a realm is one account in one mode; every tenant-owned row hangs below one.

CREATE DOMAIN id AS text COLLATE "C";
CREATE DOMAIN micros AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN mode AS text CHECK (VALUE IN ('test', 'live'));
CREATE DOMAIN sha256 AS bytea CHECK (octet_length(VALUE) = 32);

-- REVOKE does not bind a superuser, so append-only is a trigger.
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

-- The millisecond that rows show. clock_timestamp() and not now(): now() is the start of the
-- transaction, which may lie before the lock that the moment must follow.
CREATE FUNCTION moment() RETURNS timestamptz LANGUAGE sql VOLATILE
  RETURN date_trunc('milliseconds', clock_timestamp());

-- Access -----------------------------------------------------------------------------------------

CREATE TABLE account (
  id         id PRIMARY KEY,
  name       text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 100),
  created_at timestamptz(3) NOT NULL DEFAULT moment()
);

CREATE TABLE realm (
  id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  account_id      id NOT NULL REFERENCES account,
  mode            mode NOT NULL,
  -- Rises with every change of the recipients directory, so that cached look-ups can be checked.
  directory_epoch bigint NOT NULL DEFAULT 1,
  UNIQUE (account_id, mode)
);

-- Genesis hash and mint are pinned per mode at the first start: another network later is refused.
CREATE TABLE network (
  mode         mode PRIMARY KEY,
  genesis_hash text,
  mint         text NOT NULL,
  decimals     smallint NOT NULL CHECK (decimals = 6),
  pinned_at    timestamptz(3) NOT NULL DEFAULT moment(),
  UNIQUE (genesis_hash)
);

-- Agents, policies, wallets ----------------------------------------------------------------------

CREATE TABLE agent (
  id             id PRIMARY KEY,
  realm_id       integer NOT NULL REFERENCES realm,
  name           text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  -- active <-> paused; both -> terminated, which is for ever
  status         text NOT NULL DEFAULT 'active'
                 CHECK (status IN ('active', 'paused', 'terminated')),
  metadata       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
  policy_id      id NOT NULL UNIQUE,
  policy_version integer NOT NULL DEFAULT 1 CHECK (policy_version >= 1),
  created_at     timestamptz(3) NOT NULL,
  updated_at     timestamptz(3) NOT NULL,
  terminated_at  timestamptz(3),
  CONSTRAINT terminated_has_a_date CHECK ((status = 'terminated') = (terminated_at IS NOT NULL)),
  -- What hangs below an agent names its realm too, so that no row can join two tenants.
  UNIQUE (id, realm_id)
);
CREATE TRIGGER agent_ends_for_good BEFORE UPDATE ON agent FOR EACH ROW
  WHEN (OLD.status = 'terminated' AND NEW.status <> 'terminated') EXECUTE FUNCTION refuse_move();
CREATE INDEX agent_by_age ON agent (realm_id, created_at, id);
CREATE INDEX agent_by_status ON agent (realm_id, status, created_at, id);

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
CREATE INDEX agent_label_by_age
  ON agent_label (realm_id, name, value_hash, created_at, agent_id);

-- Every version of every policy. A version never changes, so any process may cache it for ever.
CREATE TABLE policy (
  agent_id                    id NOT NULL REFERENCES agent,
  version                     integer NOT NULL CHECK (version >= 1),
  cap_micros_daily            micros NOT NULL CHECK (cap_micros_daily % 10000 = 0),
  cap_micros_per_transaction  micros CHECK (cap_micros_per_transaction % 10000 = 0),
  approval_threshold_micros   micros CHECK (approval_threshold_micros % 10000 = 0),
  allowlist                   text[] NOT NULL CHECK (cardinality(allowlist) <= 1000),
  blocklist                   text[] NOT NULL CHECK (cardinality(blocklist) <= 1000),
  frozen                      boolean NOT NULL,
  changed_by                  text NOT NULL,
  changed_at                  timestamptz(3) NOT NULL,
  PRIMARY KEY (agent_id, version)
);
CREATE TRIGGER policy_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON policy
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE agent ADD FOREIGN KEY (id, policy_version) REFERENCES policy (agent_id, version)
  DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE api_key (
  id           id PRIMARY KEY,
  realm_id     integer NOT NULL REFERENCES realm,
  scope        text NOT NULL CHECK (scope IN ('admin', 'agent', 'approver', 'read')),
  agent_id     id,
  name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  -- SHA-256 of the key. The key has 190 random bits, so a slow hash would add nothing.
  hash         sha256 NOT NULL UNIQUE,
  created_at   timestamptz(3) NOT NULL DEFAULT moment(),
  expires_at   timestamptz(3),
  last_used_at timestamptz(3),
  revoked_at   timestamptz(3),
  CONSTRAINT agent_scope_has_an_agent CHECK ((scope = 'agent') = (agent_id IS NOT NULL)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
);
CREATE TRIGGER api_key_is_revoked_for_good BEFORE UPDATE ON api_key FOR EACH ROW
  WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
  EXECUTE FUNCTION refuse_move();
CREATE INDEX api_key_by_age ON api_key (realm_id, created_at, id);
CREATE INDEX api_key_by_agent ON api_key (agent_id) WHERE agent_id IS NOT NULL;

-- The wallet row is also the lock of its agent: whatever decides about the agent's money or policy
-- takes it first. Half of each page stays free and no counter is indexed, so updates stay in place.
CREATE TABLE wallet (
  agent_id       id PRIMARY KEY,
  realm_id       integer NOT NULL,
  address        text NOT NULL UNIQUE,
  mint           text NOT NULL,
  -- provisioned -> funded at the first deposit, funded <-> depleted with the balance
  status         text NOT NULL DEFAULT 'provisioned'
                 CHECK (status IN ('provisioned', 'funded', 'depleted')),
  credits_posted micros NOT NULL DEFAULT 0,
  debits_posted  micros NOT NULL DEFAULT 0,
  debits_pending micros NOT NULL DEFAULT 0,
  -- How many ledger transfers the wallet has: the next one's number is one more.
  transfers      bigint NOT NULL DEFAULT 0 CHECK (transfers >= 0),
  -- balance x 10 < daily cap, kept with every change of either
  is_low         boolean NOT NULL,
  last_funded_at timestamptz(3),
  CONSTRAINT no_overdraft CHECK (credits_posted - debits_posted - debits_pending >= 0),
  CONSTRAINT funded_has_a_date CHECK ((status = 'provisioned') = (last_funded_at IS NULL)),
  CONSTRAINT status_follows_balance CHECK (
    (status = 'funded') = (credits_posted - debits_posted > 0)),
  FOREIGN KEY (agent_id, realm_id) REFERENCES agent (id, realm_id)
) WITH (fillfactor = 50);
CREATE TRIGGER wallet_totals_only_rise BEFORE UPDATE ON wallet FOR EACH ROW
  WHEN (NEW.credits_posted < OLD.credits_posted OR NEW.debits_posted < OLD.debits_posted
        OR NEW.transfers < OLD.transfers)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER wallet_stays BEFORE DELETE OR TRUNCATE ON wallet
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Sealed with AES-256-GCM; agent id, address and versions are the associated data.
CREATE TABLE wallet_key (
  agent_id       id PRIMARY KEY REFERENCES agent,
  address        text NOT NULL,
  key_version    integer NOT NULL CHECK (key_version >= 1),
  master_version integer NOT NULL CHECK (master_version >= 1),
  sealed         bytea NOT NULL,
  created_at     timestamptz(3) NOT NULL DEFAULT moment()
);

CREATE TABLE recipient (
  realm_id   integer NOT NULL REFERENCES realm,
  hostname   text COLLATE "C" NOT NULL CHECK (length(hostname) BETWEEN 3 AND 253),
  address    text NOT NULL CHECK (length(address) BETWEEN 32 AND 44),
  created_by text NOT NULL,
  created_at timestamptz(3) NOT NULL,
  updated_at timestamptz(3) NOT NULL,
  PRIMARY KEY (realm_id, hostname)
);
CREATE INDEX recipient_by_age ON recipient (realm_id, created_at, hostname);

-- Idempotency, events, audit ---------------------------------------------------------------------

-- Written in the commit of the effect it stands for: both are there, or neither.
CREATE TABLE idempotency (
  realm_id    integer NOT NULL,
  route       text NOT NULL,
  -- the resolved agent for spends, '' elsewhere
  agent_id    id NOT NULL DEFAULT '',
  key         text COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
  fingerprint sha256 NOT NULL,
  status      smallint NOT NULL CHECK (status BETWEEN 200 AND 299),
  -- The answer itself, or the event whose data it is.
  body        bytea,
  event_id    id,
  created_at  timestamptz(3) NOT NULL DEFAULT moment(),
  PRIMARY KEY (realm_id, route, agent_id, key),
  CONSTRAINT answer_is_somewhere CHECK ((body IS NULL) <> (event_id IS NULL))
);
CREATE INDEX idempotency_to_forget ON idempotency USING brin (created_at);

CREATE TABLE event (
  id         id PRIMARY KEY,
  realm_id   integer NOT NULL,
  type       text NOT NULL,
  agent_id   id,
  -- JSON, kept as text: it is made by us and only ever handed on, so nobody need parse it.
  data       text NOT NULL,
  created_at timestamptz(3) NOT NULL,
  -- Readers that must miss nothing read below the oldest running transaction.
  xact       xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX event_by_age ON event (realm_id, created_at, id);
CREATE INDEX event_to_forget ON event USING brin (created_at);

CREATE TABLE webhook (
  id               id PRIMARY KEY,
  realm_id         integer NOT NULL REFERENCES realm,
  url              text NOT NULL CHECK (length(url) <= 2048),
  events           text[] NOT NULL CHECK (cardinality(events) >= 1),
  status           text NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled')),
  disabled_reason  text,
  secret_sealed    bytea NOT NULL,
  previous_sealed  bytea,
  previous_until   timestamptz(3),
  created_at       timestamptz(3) NOT NULL,
  CHECK ((previous_sealed IS NULL) = (previous_until IS NULL)),
  CHECK (status = 'disabled' OR disabled_reason IS NULL)
);
CREATE INDEX webhook_by_age ON webhook (realm_id, created_at, id);

-- pending -> delivered | failed; the row is written with its event, the worker does the rest.
CREATE TABLE delivery (
  id              id PRIMARY KEY,
  webhook_id      id NOT NULL REFERENCES webhook ON DELETE CASCADE,
  event_id        id NOT NULL REFERENCES event ON DELETE CASCADE,
  status          text NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'delivered', 'failed')),
  attempts        json NOT NULL DEFAULT '[]',
  attempt_count   integer NOT NULL DEFAULT 0,
  next_attempt_at timestamptz(3),
  leased_until    timestamptz(3),
  created_at      timestamptz(3) NOT NULL,
  CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL))
);
CREATE INDEX delivery_due ON delivery (next_attempt_at) WHERE status = 'pending';
CREATE INDEX delivery_by_webhook ON delivery (webhook_id, created_at, id);
CREATE INDEX delivery_by_event ON delivery (event_id);

-- Who did what, with what was before and after. Secrets never get here.
CREATE TABLE audit_log (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz(3) NOT NULL DEFAULT moment(),
  realm_id   integer REFERENCES realm,
  actor      text NOT NULL,
  request_id text NOT NULL,
  action     text NOT NULL,
  subject    text NOT NULL,
  before     json,
  after      json
);
CREATE INDEX audit_log_by_subject ON audit_log (subject, id);
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
