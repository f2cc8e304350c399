-- What payments cost in SOL becomes part of the policy: a budget an agent and day, kept like the
-- cap of the day, and one an account and day, counted where payments are signed.
ALTER TABLE policy ADD COLUMN network_lamports_daily bigint CHECK (network_lamports_daily >= 0);

ALTER TABLE usage
  ADD COLUMN network_lamports bigint NOT NULL DEFAULT 0 CHECK (network_lamports >= 0),
  ADD COLUMN network_cap_lamports bigint NOT NULL DEFAULT 0,
  ADD CONSTRAINT network_cap_not_passed CHECK (network_lamports <= network_cap_lamports);

-- What a spend holds of its day's network budget while it is open, and what it cost in the end.
ALTER TABLE spend
  ADD COLUMN network_lamports bigint NOT NULL DEFAULT 0 CHECK (network_lamports >= 0),
  ADD COLUMN rent_lamports bigint CHECK (rent_lamports >= 0);
ALTER TABLE withdrawal ADD COLUMN rent_lamports bigint CHECK (rent_lamports >= 0);
-- Open spends that hold the rent of a token account (2,039,280 lamports).
CREATE INDEX spend_opening ON spend (agent_id, pay_to)
  WHERE status IN ('pending', 'approved') AND network_lamports >= 2039280;

-- What the attempts that ended without paying have cost.
ALTER TABLE payment
  ADD COLUMN cost_lamports bigint NOT NULL DEFAULT 0 CHECK (cost_lamports >= 0);
-- What an attempt costs at most, and whether it opens the payee's token account. Those from before
-- all do if need be.
ALTER TABLE submission
  ADD COLUMN network_lamports bigint NOT NULL DEFAULT 0 CHECK (network_lamports >= 0),
  ADD COLUMN opens_account boolean NOT NULL DEFAULT true;

-- Payees of an account, whether their token account was there when last seen, and how often this
-- account paid for opening it. `opener`: the payment that last set out to.
CREATE TABLE payee_account (
  realm_id  integer NOT NULL REFERENCES realm,
  address   text NOT NULL,
  is_open   boolean NOT NULL,
  opened    integer NOT NULL DEFAULT 0 CHECK (opened >= 0),
  opener    id,
  PRIMARY KEY (realm_id, address)
);

-- What the payments of an account cost by the UTC day they were signed on.
CREATE TABLE network_cost (
  realm_id  integer NOT NULL REFERENCES realm,
  day       date NOT NULL,
  lamports  bigint NOT NULL CHECK (lamports >= 0),
  PRIMARY KEY (realm_id, day)
);
CREATE INDEX network_cost_by_day ON network_cost (day);

-- What the fee payer of a mode held when the worker last looked.
CREATE TABLE fee_payer_balance (
  mode      mode PRIMARY KEY,
  lamports  bigint NOT NULL CHECK (lamports >= 0),
  seen_at   timestamptz(3) NOT NULL DEFAULT moment()
);

-- How many spends of an agent wait for a person: bounded, so counted under its wallet's lock.
CREATE INDEX spend_pending ON spend (agent_id) WHERE status = 'pending';

DROP FUNCTION lock_agents(text[], integer[], text);
CREATE FUNCTION lock_agents(agent_ids text[], realm_ids integer[], locking text)
RETURNS TABLE (
  agent_id id, realm_id integer, address text, mint text, wallet_status text,
  credits_posted bigint, debits_posted bigint, debits_pending bigint, transfers bigint,
  decisions bigint, is_low boolean, last_funded_at timestamptz, now timestamptz,
  agent_status text, policy_version integer, spent_today_micros bigint,
  network_today_lamports bigint, pending_count bigint, directory_epoch text,
  has_webhooks boolean, history text)
LANGUAGE plpgsql AS $$
DECLARE
  read_at timestamptz;
  timeline text := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
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
           coalesce(u.spent_micros, 0)::bigint, coalesce(u.network_lamports, 0)::bigint,
           (SELECT count(*) FROM spend s WHERE s.agent_id = w.agent_id AND s.status = 'pending'),
           format('%s/%s', timeline, r.directory_epoch),
           EXISTS (SELECT FROM webhook h WHERE h.realm_id = w.realm_id AND h.status = 'enabled'),
           timeline
      FROM wallet w
      JOIN agent a ON a.id = w.agent_id
      JOIN realm r ON r.id = w.realm_id
      LEFT JOIN usage u ON u.agent_id = w.agent_id AND u.window_kind = 'day'
                       AND u.window_start = (read_at AT TIME ZONE 'UTC')::date
     WHERE w.agent_id = ANY (agent_ids) AND w.realm_id = ANY (realm_ids);
END $$;
