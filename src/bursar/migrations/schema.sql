-- What the numbered migrations add up to, for reading. Written by `make schema`, never by hand.

CREATE DOMAIN id AS text COLLATE pg_catalog."C";

CREATE DOMAIN micros AS bigint
	CONSTRAINT micros_check CHECK ((VALUE >= 0));

CREATE DOMAIN mode AS text
	CONSTRAINT mode_check CHECK ((VALUE = ANY (ARRAY['test'::text, 'live'::text])));

CREATE DOMAIN sha256 AS bytea
	CONSTRAINT sha256_check CHECK ((octet_length(VALUE) = 32));

CREATE FUNCTION exchange_deliveries(done_ids text[], done_leases timestamp with time zone[], done_statuses text[], done_waits double precision[], done_attempts text[], most integer, most_failing integer, per_webhook integer, lease_seconds double precision) RETURNS TABLE(id text, lease timestamp with time zone, attempt_count integer, webhook_id text, url text, failing boolean, event_id text, type text, agent_id text, data text, created_at timestamp with time zone, mode text)
    LANGUAGE plpgsql
    AS $$
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
    held AS (
      SELECT o.*, sum(o.leased) OVER (PARTITION BY o.account_id) AS of_account,
             sum(o.leased) OVER (PARTITION BY o.account_id, o.failing) AS of_kind
        FROM open o),
    due AS (
      SELECT h.id AS webhook_id, h.url, h.account_id, h.failing, h.of_account, d.id, d.turn,
             d.next_attempt_at, h.of_kind + row_number() OVER (
               PARTITION BY h.account_id, h.failing ORDER BY d.turn, d.next_attempt_at) AS share
        FROM held h CROSS JOIN LATERAL (
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
      SELECT * FROM placed p WHERE p.share <= most - p.place + 1)
    UPDATE delivery d SET leased_until = clock_timestamp() + make_interval(secs => lease_seconds)
      FROM taken t, event e, realm r
     WHERE d.id = t.id AND e.id = d.event_id AND r.id = e.realm_id
    RETURNING d.id::text, d.leased_until::timestamptz, d.attempt_count, t.webhook_id::text, t.url,
              t.failing, e.id::text, e.type, e.agent_id::text, e.data, e.created_at::timestamptz,
              r.mode::text;
END $$;

CREATE FUNCTION lock_agents(agent_ids text[], realm_ids integer[], locking text) RETURNS TABLE(agent_id id, realm_id integer, address text, mint text, wallet_status text, credits_posted bigint, debits_posted bigint, debits_pending bigint, transfers bigint, decisions bigint, is_low boolean, last_funded_at timestamp with time zone, now timestamp with time zone, agent_status text, policy_version integer, spent_today_micros bigint, network_today_lamports bigint, pending_count bigint, directory_epoch text, has_webhooks boolean, history text)
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION moment() RETURNS timestamp with time zone
    LANGUAGE sql
    RETURN date_trunc('milliseconds'::text, clock_timestamp());

CREATE FUNCTION refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION refuse_move() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION '%: refused', TG_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TABLE account (
    id id NOT NULL,
    name text NOT NULL,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT account_name_check CHECK (((length(name) >= 1) AND (length(name) <= 100)))
);

CREATE TABLE agent (
    id id NOT NULL,
    realm_id integer NOT NULL,
    name text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    policy_id id NOT NULL,
    policy_version integer DEFAULT 1 NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    updated_at timestamp(3) with time zone NOT NULL,
    terminated_at timestamp(3) with time zone,
    CONSTRAINT agent_metadata_check CHECK ((jsonb_typeof(metadata) = 'object'::text)),
    CONSTRAINT agent_name_check CHECK (((length(name) >= 1) AND (length(name) <= 100))),
    CONSTRAINT agent_policy_version_check CHECK ((policy_version >= 1)),
    CONSTRAINT agent_status_check CHECK ((status = ANY (ARRAY['active'::text, 'paused'::text, 'terminated'::text]))),
    CONSTRAINT terminated_has_a_date CHECK (((status = 'terminated'::text) = (terminated_at IS NOT NULL)))
);

CREATE TABLE agent_label (
    agent_id id NOT NULL,
    realm_id integer NOT NULL,
    name text NOT NULL,
    value_hash bytea NOT NULL,
    created_at timestamp(3) with time zone NOT NULL
);

CREATE TABLE api_key (
    id id NOT NULL,
    realm_id integer NOT NULL,
    scope text NOT NULL,
    agent_id id,
    name text NOT NULL,
    hash sha256 NOT NULL,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    expires_at timestamp(3) with time zone,
    last_used_at timestamp(3) with time zone,
    revoked_at timestamp(3) with time zone,
    CONSTRAINT agent_scope_has_an_agent CHECK (((scope = 'agent'::text) = (agent_id IS NOT NULL))),
    CONSTRAINT api_key_name_check CHECK (((length(name) >= 1) AND (length(name) <= 100))),
    CONSTRAINT api_key_scope_check CHECK ((scope = ANY (ARRAY['admin'::text, 'agent'::text, 'approver'::text, 'read'::text])))
);

CREATE TABLE audit_log (
    id bigint NOT NULL,
    at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    realm_id integer,
    actor text NOT NULL,
    request_id text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    before json,
    after json,
    line_id id DEFAULT ('log_'::text || "left"(replace((gen_random_uuid())::text, '-'::text, ''::text), 26)) NOT NULL
);

ALTER TABLE audit_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME audit_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE console_session (
    token_hash sha256 NOT NULL,
    key_id id NOT NULL,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    expires_at timestamp(3) with time zone NOT NULL,
    id id DEFAULT ('ses_'::text || "left"(replace((gen_random_uuid())::text, '-'::text, ''::text), 26)) NOT NULL,
    last_used_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    address text DEFAULT ''::text NOT NULL,
    browser text DEFAULT ''::text NOT NULL,
    CONSTRAINT console_session_address_check CHECK ((length(address) <= 100)),
    CONSTRAINT console_session_browser_check CHECK ((length(browser) <= 200)),
    CONSTRAINT console_session_check CHECK ((expires_at > created_at))
);

CREATE TABLE delivery (
    id id NOT NULL,
    webhook_id id NOT NULL,
    event_id id NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    attempts jsonb DEFAULT '[]'::jsonb NOT NULL,
    attempt_count integer DEFAULT 0 NOT NULL,
    next_attempt_at timestamp(3) with time zone,
    leased_until timestamp(3) with time zone,
    created_at timestamp(3) with time zone NOT NULL,
    CONSTRAINT delivery_check CHECK (((status = 'pending'::text) = (next_attempt_at IS NOT NULL))),
    CONSTRAINT delivery_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text]))),
    CONSTRAINT only_pending_is_leased CHECK (((leased_until IS NULL) OR (status = 'pending'::text)))
);

CREATE TABLE deposit (
    id id NOT NULL,
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    amount_micros micros NOT NULL,
    token_account text NOT NULL,
    sender text,
    signature text NOT NULL,
    block_time bigint,
    status text NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    credited_at timestamp(3) with time zone,
    CONSTRAINT credited_has_a_date CHECK (((status = 'credited'::text) = (credited_at IS NOT NULL))),
    CONSTRAINT deposit_amount_micros_check CHECK (((amount_micros)::bigint > 0)),
    CONSTRAINT deposit_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'credited'::text])))
);

CREATE TABLE deposit_cursor (
    agent_id id NOT NULL,
    signature text NOT NULL
);

CREATE TABLE event (
    id id NOT NULL,
    realm_id integer NOT NULL,
    type text NOT NULL,
    agent_id id,
    data text NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() NOT NULL
);

CREATE TABLE fee_payer_balance (
    mode mode NOT NULL,
    lamports bigint NOT NULL,
    seen_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT fee_payer_balance_lamports_check CHECK ((lamports >= 0))
);

CREATE TABLE heartbeat (
    mode text NOT NULL,
    duty text NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    moved_at timestamp with time zone NOT NULL,
    patience_seconds double precision NOT NULL,
    problem text,
    CONSTRAINT heartbeat_mode_check CHECK ((mode = ANY (ARRAY['test'::text, 'live'::text, 'all'::text]))),
    CONSTRAINT heartbeat_patience_seconds_check CHECK ((patience_seconds > (0)::double precision))
);

CREATE TABLE idempotency (
    realm_id integer NOT NULL,
    route text NOT NULL,
    agent_id id DEFAULT ''::text NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    fingerprint sha256 NOT NULL,
    status smallint NOT NULL,
    body bytea,
    event_id id,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT answer_is_somewhere CHECK (((body IS NULL) <> (event_id IS NULL))),
    CONSTRAINT idempotency_key_check CHECK (((length(key) >= 1) AND (length(key) <= 255))),
    CONSTRAINT idempotency_status_check CHECK (((status >= 200) AND (status <= 299)))
);

CREATE TABLE lease (
    name text NOT NULL,
    holder text NOT NULL,
    until timestamp with time zone NOT NULL
);

CREATE TABLE transfer (
    agent_id id NOT NULL,
    number bigint NOT NULL,
    kind text NOT NULL,
    payment_id id NOT NULL,
    amount_micros micros NOT NULL,
    credits_posted_after micros NOT NULL,
    debits_posted_after micros NOT NULL,
    debits_pending_after micros NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    xact xid8 DEFAULT pg_current_xact_id() NOT NULL,
    CONSTRAINT no_overdraft_after CHECK (((((credits_posted_after)::bigint - (debits_posted_after)::bigint) - (debits_pending_after)::bigint) >= 0)),
    CONSTRAINT transfer_amount_micros_check CHECK (((amount_micros)::bigint > 0)),
    CONSTRAINT transfer_kind_check CHECK ((kind = ANY (ARRAY['deposit'::text, 'reserve'::text, 'post'::text, 'void'::text]))),
    CONSTRAINT transfer_number_check CHECK ((number >= 1))
);

CREATE VIEW ledger_entry AS
 SELECT transfer.agent_id,
    transfer.number,
    transfer.payment_id,
    transfer.kind,
    transfer.created_at,
    side.account,
    side.debit_micros,
    side.credit_micros
   FROM (transfer
     CROSS JOIN LATERAL ( VALUES (
                CASE transfer.kind
                    WHEN 'deposit'::text THEN 'outside'::text
                    WHEN 'void'::text THEN ('held:'::text || (transfer.agent_id)::text)
                    WHEN 'post'::text THEN ('held:'::text || (transfer.agent_id)::text)
                    ELSE ('wallet:'::text || (transfer.agent_id)::text)
                END,transfer.amount_micros,(0)::bigint), (
                CASE transfer.kind
                    WHEN 'deposit'::text THEN ('wallet:'::text || (transfer.agent_id)::text)
                    WHEN 'void'::text THEN ('wallet:'::text || (transfer.agent_id)::text)
                    WHEN 'post'::text THEN 'outside'::text
                    ELSE ('held:'::text || (transfer.agent_id)::text)
                END,(0)::bigint,transfer.amount_micros)) side(account, debit_micros, credit_micros));

CREATE TABLE master_key (
    version integer NOT NULL,
    added_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT master_key_version_check CHECK ((version >= 1))
);

CREATE TABLE migration (
    number integer NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    after_deploy boolean DEFAULT false NOT NULL
);

CREATE TABLE network (
    mode mode NOT NULL,
    genesis_hash text,
    mint text NOT NULL,
    decimals smallint NOT NULL,
    pinned_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT network_decimals_check CHECK ((decimals = 6))
);

CREATE TABLE network_cost (
    realm_id integer NOT NULL,
    day date NOT NULL,
    lamports bigint NOT NULL,
    CONSTRAINT network_cost_lamports_check CHECK ((lamports >= 0))
);

CREATE TABLE payee_account (
    realm_id integer NOT NULL,
    address text NOT NULL,
    is_open boolean NOT NULL,
    opened integer DEFAULT 0 NOT NULL,
    opener id,
    CONSTRAINT payee_account_opened_check CHECK ((opened >= 0))
);

CREATE TABLE payment (
    id id NOT NULL,
    mode mode NOT NULL,
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    amount_micros micros NOT NULL,
    destination text NOT NULL,
    state text DEFAULT 'waiting'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    leased_until timestamp with time zone NOT NULL,
    problem text,
    created_at timestamp(3) with time zone NOT NULL,
    cost_lamports bigint DEFAULT 0 NOT NULL,
    CONSTRAINT payment_amount_micros_check CHECK (((amount_micros)::bigint > 0)),
    CONSTRAINT payment_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT payment_cost_lamports_check CHECK ((cost_lamports >= 0)),
    CONSTRAINT payment_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'live'::text, 'settled'::text, 'failed'::text])))
);

CREATE TABLE policy (
    agent_id id NOT NULL,
    version integer NOT NULL,
    cap_micros_daily micros NOT NULL,
    cap_micros_per_transaction micros,
    approval_threshold_micros micros,
    allowlist text[] NOT NULL,
    blocklist text[] NOT NULL,
    frozen boolean NOT NULL,
    changed_by text NOT NULL,
    changed_at timestamp(3) with time zone NOT NULL,
    network_lamports_daily bigint,
    CONSTRAINT policy_allowlist_check CHECK ((cardinality(allowlist) <= 1000)),
    CONSTRAINT policy_approval_threshold_micros_check CHECK ((((approval_threshold_micros)::bigint % (10000)::bigint) = 0)),
    CONSTRAINT policy_blocklist_check CHECK ((cardinality(blocklist) <= 1000)),
    CONSTRAINT policy_cap_micros_daily_check CHECK ((((cap_micros_daily)::bigint % (10000)::bigint) = 0)),
    CONSTRAINT policy_cap_micros_per_transaction_check CHECK ((((cap_micros_per_transaction)::bigint % (10000)::bigint) = 0)),
    CONSTRAINT policy_network_lamports_daily_check CHECK ((network_lamports_daily >= 0)),
    CONSTRAINT policy_version_check CHECK ((version >= 1))
);

CREATE TABLE quarantine (
    agent_id id NOT NULL,
    duty text NOT NULL,
    problem text NOT NULL,
    tries integer DEFAULT 1 NOT NULL,
    since timestamp(3) with time zone NOT NULL,
    next_try_at timestamp with time zone NOT NULL,
    CONSTRAINT quarantine_duty_check CHECK ((duty = ANY (ARRAY['settle'::text, 'expire'::text, 'deposit'::text, 'stop'::text]))),
    CONSTRAINT quarantine_tries_check CHECK ((tries >= 1))
);

CREATE TABLE realm (
    id integer NOT NULL,
    account_id id NOT NULL,
    mode mode NOT NULL,
    directory_epoch bigint DEFAULT 1 NOT NULL
);

ALTER TABLE realm ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME realm_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE recipient (
    realm_id integer NOT NULL,
    hostname text NOT NULL COLLATE pg_catalog."C",
    address text NOT NULL,
    created_by text NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    updated_at timestamp(3) with time zone NOT NULL,
    CONSTRAINT recipient_address_check CHECK (((length(address) >= 32) AND (length(address) <= 44))),
    CONSTRAINT recipient_hostname_check CHECK (((length(hostname) >= 3) AND (length(hostname) <= 253)))
);

CREATE TABLE seal (
    number bigint NOT NULL,
    xact_below xid8 NOT NULL,
    transfer_count bigint NOT NULL,
    hash sha256 NOT NULL,
    sealed_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT seal_number_check CHECK ((number >= 1)),
    CONSTRAINT seal_transfer_count_check CHECK ((transfer_count >= 1))
);

CREATE TABLE settlement_watch (
    mode mode NOT NULL,
    timeline text NOT NULL,
    quiet_until_height bigint DEFAULT 0 NOT NULL,
    careful_before timestamp with time zone,
    explained_slot bigint,
    CONSTRAINT settlement_watch_explained_slot_check CHECK ((explained_slot >= 0))
);

CREATE TABLE spend (
    id id NOT NULL,
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    amount_micros micros NOT NULL,
    recipient text NOT NULL COLLATE pg_catalog."C",
    pay_to text,
    status text NOT NULL,
    reject_code text,
    memo text,
    metadata text DEFAULT '{}'::text NOT NULL,
    policy_version integer NOT NULL,
    decision text NOT NULL,
    network text NOT NULL,
    created_by text NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    expires_at timestamp(3) with time zone,
    decided_by text,
    decided_at timestamp(3) with time zone,
    decision_reason text,
    signature text,
    block_time bigint,
    fee_lamports bigint,
    settled_at timestamp(3) with time zone,
    updated_at timestamp(3) with time zone NOT NULL,
    decision_number bigint NOT NULL,
    network_lamports bigint DEFAULT 0 NOT NULL,
    rent_lamports bigint,
    CONSTRAINT decided_by_someone CHECK ((((decided_by IS NULL) = (decided_at IS NULL)) AND ((decided_by IS NOT NULL) OR (decision_reason IS NULL)))),
    CONSTRAINT live_spend_has_a_payee CHECK (((status = 'rejected'::text) OR (pay_to IS NOT NULL))),
    CONSTRAINT pending_expires CHECK (((status <> 'pending'::text) OR (expires_at IS NOT NULL))),
    CONSTRAINT rejected_has_a_code CHECK (((status = 'rejected'::text) = (reject_code IS NOT NULL))),
    CONSTRAINT settled_is_on_chain CHECK ((((status = 'settled'::text) = (signature IS NOT NULL)) AND ((status = 'settled'::text) = (settled_at IS NOT NULL)) AND ((status = 'settled'::text) OR (block_time IS NULL)))),
    CONSTRAINT spend_amount_micros_check CHECK (((amount_micros)::bigint > 0)),
    CONSTRAINT spend_decision_number_check CHECK ((decision_number >= 1)),
    CONSTRAINT spend_fee_lamports_check CHECK ((fee_lamports >= 0)),
    CONSTRAINT spend_memo_check CHECK ((length(memo) <= 200)),
    CONSTRAINT spend_network_lamports_check CHECK ((network_lamports >= 0)),
    CONSTRAINT spend_rent_lamports_check CHECK ((rent_lamports >= 0)),
    CONSTRAINT spend_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'approved'::text, 'settled'::text, 'rejected'::text])))
);

CREATE TABLE spend_total (
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    shard smallint NOT NULL,
    day date NOT NULL,
    recipient text NOT NULL COLLATE pg_catalog."C",
    spend_count bigint NOT NULL,
    rejected_count bigint NOT NULL,
    settled_micros micros NOT NULL,
    CONSTRAINT spend_total_rejected_count_check CHECK ((rejected_count >= 0)),
    CONSTRAINT spend_total_spend_count_check CHECK ((spend_count >= 0))
)
WITH (fillfactor='70');

CREATE TABLE submission (
    payment_id id NOT NULL,
    attempt integer NOT NULL,
    mode mode NOT NULL,
    state text NOT NULL,
    raw bytea NOT NULL,
    signature text NOT NULL,
    blockhash text NOT NULL,
    last_valid_height bigint NOT NULL,
    signed_slot bigint NOT NULL,
    signed_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    next_check_at timestamp with time zone NOT NULL,
    checks integer DEFAULT 0 NOT NULL,
    refusal text,
    in_doubt boolean DEFAULT false NOT NULL,
    outcome text,
    fee_lamports bigint,
    network_lamports bigint DEFAULT 0 NOT NULL,
    opens_account boolean DEFAULT true NOT NULL,
    CONSTRAINT ended_has_an_outcome CHECK (((state = 'live'::text) = (outcome IS NULL))),
    CONSTRAINT submission_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT submission_network_lamports_check CHECK ((network_lamports >= 0)),
    CONSTRAINT submission_state_check CHECK ((state = ANY (ARRAY['live'::text, 'dead'::text, 'settled'::text])))
);

CREATE TABLE system_key (
    owner text NOT NULL COLLATE pg_catalog."C",
    address text NOT NULL,
    key_version integer NOT NULL,
    master_version integer NOT NULL,
    sealed bytea NOT NULL,
    provider text NOT NULL,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    CONSTRAINT system_key_key_version_check CHECK ((key_version >= 1))
);

CREATE TABLE unread_deposit (
    signature text NOT NULL,
    token_account text NOT NULL,
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    problem text NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    noticed_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    next_try_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    dismissed_at timestamp(3) with time zone,
    CONSTRAINT unread_deposit_problem_check CHECK ((length(problem) <= 300)),
    CONSTRAINT unread_deposit_tries_check CHECK ((tries >= 0))
);

CREATE TABLE usage (
    agent_id id NOT NULL,
    window_kind text NOT NULL,
    window_start date NOT NULL,
    spent_micros micros NOT NULL,
    cap_micros micros NOT NULL,
    network_lamports bigint DEFAULT 0 NOT NULL,
    network_cap_lamports bigint DEFAULT 0 NOT NULL,
    CONSTRAINT cap_not_passed CHECK (((spent_micros)::bigint <= (cap_micros)::bigint)),
    CONSTRAINT network_cap_not_passed CHECK ((network_lamports <= network_cap_lamports)),
    CONSTRAINT usage_network_lamports_check CHECK ((network_lamports >= 0)),
    CONSTRAINT usage_window_kind_check CHECK ((window_kind = 'day'::text))
)
WITH (fillfactor='50');

CREATE TABLE wallet (
    agent_id id NOT NULL,
    realm_id integer NOT NULL,
    address text NOT NULL,
    mint text NOT NULL,
    status text DEFAULT 'provisioned'::text NOT NULL,
    credits_posted micros DEFAULT 0 NOT NULL,
    debits_posted micros DEFAULT 0 NOT NULL,
    debits_pending micros DEFAULT 0 NOT NULL,
    transfers bigint DEFAULT 0 NOT NULL,
    is_low boolean NOT NULL,
    last_funded_at timestamp(3) with time zone,
    decisions bigint DEFAULT 0 NOT NULL,
    held boolean DEFAULT false NOT NULL,
    credited_slot bigint DEFAULT 0 NOT NULL,
    CONSTRAINT funded_has_a_date CHECK (((status = 'provisioned'::text) = (last_funded_at IS NULL))),
    CONSTRAINT no_overdraft CHECK (((((credits_posted)::bigint - (debits_posted)::bigint) - (debits_pending)::bigint) >= 0)),
    CONSTRAINT status_follows_balance CHECK (((status = 'funded'::text) = (((credits_posted)::bigint - (debits_posted)::bigint) > 0))),
    CONSTRAINT wallet_credited_slot_check CHECK ((credited_slot >= 0)),
    CONSTRAINT wallet_decisions_check CHECK ((decisions >= 0)),
    CONSTRAINT wallet_status_check CHECK ((status = ANY (ARRAY['provisioned'::text, 'funded'::text, 'depleted'::text]))),
    CONSTRAINT wallet_transfers_check CHECK ((transfers >= 0))
)
WITH (fillfactor='50');

CREATE TABLE wallet_key (
    agent_id id NOT NULL,
    address text NOT NULL,
    key_version integer NOT NULL,
    master_version integer NOT NULL,
    sealed bytea NOT NULL,
    created_at timestamp(3) with time zone DEFAULT moment() NOT NULL,
    provider text DEFAULT 'embedded'::text NOT NULL,
    CONSTRAINT wallet_key_key_version_check CHECK ((key_version >= 1)),
    CONSTRAINT wallet_key_master_version_check CHECK ((master_version >= 1))
);

CREATE TABLE wallet_stop (
    agent_id id NOT NULL,
    policy_version integer,
    stopped_at timestamp(3) with time zone DEFAULT moment() NOT NULL
);

CREATE TABLE webhook (
    id id NOT NULL,
    realm_id integer NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL,
    status text DEFAULT 'enabled'::text NOT NULL,
    disabled_reason text,
    created_at timestamp(3) with time zone NOT NULL,
    failing_since timestamp(3) with time zone,
    CONSTRAINT webhook_check1 CHECK (((status = 'disabled'::text) OR (disabled_reason IS NULL))),
    CONSTRAINT webhook_events_check CHECK ((cardinality(events) >= 1)),
    CONSTRAINT webhook_events_check1 CHECK ((cardinality(events) <= 100)),
    CONSTRAINT webhook_status_check CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text]))),
    CONSTRAINT webhook_url_check CHECK ((length(url) <= 2048))
);

CREATE TABLE webhook_secret (
    owner text NOT NULL COLLATE pg_catalog."C",
    webhook_id id NOT NULL,
    number integer NOT NULL,
    master_version integer NOT NULL,
    sealed bytea NOT NULL,
    signs_until timestamp(3) with time zone,
    CONSTRAINT webhook_secret_number_check CHECK ((number >= 1))
);

CREATE TABLE withdrawal (
    id id NOT NULL,
    realm_id integer NOT NULL,
    agent_id id NOT NULL,
    amount_micros micros NOT NULL,
    destination text NOT NULL,
    status text NOT NULL,
    failure_code text,
    memo text,
    metadata json DEFAULT '{}'::json NOT NULL,
    network text NOT NULL,
    created_by text NOT NULL,
    created_at timestamp(3) with time zone NOT NULL,
    signature text,
    block_time bigint,
    fee_lamports bigint,
    settled_at timestamp(3) with time zone,
    rent_lamports bigint,
    CONSTRAINT failed_has_a_code CHECK (((status = 'failed'::text) = (failure_code IS NOT NULL))),
    CONSTRAINT settled_withdrawal_is_on_chain CHECK ((((status = 'settled'::text) = (signature IS NOT NULL)) AND ((status = 'settled'::text) = (settled_at IS NOT NULL)))),
    CONSTRAINT withdrawal_amount_micros_check CHECK (((amount_micros)::bigint > 0)),
    CONSTRAINT withdrawal_fee_lamports_check CHECK ((fee_lamports >= 0)),
    CONSTRAINT withdrawal_memo_check CHECK ((length(memo) <= 200)),
    CONSTRAINT withdrawal_rent_lamports_check CHECK ((rent_lamports >= 0)),
    CONSTRAINT withdrawal_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'settled'::text, 'failed'::text])))
);

ALTER TABLE ONLY account
    ADD CONSTRAINT account_name_key UNIQUE (name);

ALTER TABLE ONLY account
    ADD CONSTRAINT account_pkey PRIMARY KEY (id);

ALTER TABLE ONLY agent
    ADD CONSTRAINT agent_id_realm_id_key UNIQUE (id, realm_id);

ALTER TABLE ONLY agent_label
    ADD CONSTRAINT agent_label_pkey PRIMARY KEY (agent_id, name);

ALTER TABLE ONLY agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (id);

ALTER TABLE ONLY agent
    ADD CONSTRAINT agent_policy_id_key UNIQUE (policy_id);

ALTER TABLE ONLY api_key
    ADD CONSTRAINT api_key_hash_key UNIQUE (hash);

ALTER TABLE ONLY api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);

ALTER TABLE ONLY audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (id);

ALTER TABLE ONLY console_session
    ADD CONSTRAINT console_session_id_key UNIQUE (id);

ALTER TABLE ONLY console_session
    ADD CONSTRAINT console_session_pkey PRIMARY KEY (token_hash);

ALTER TABLE ONLY delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (id);

ALTER TABLE ONLY deposit_cursor
    ADD CONSTRAINT deposit_cursor_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY deposit
    ADD CONSTRAINT deposit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY deposit
    ADD CONSTRAINT deposit_signature_token_account_key UNIQUE (signature, token_account);

ALTER TABLE ONLY event
    ADD CONSTRAINT event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY fee_payer_balance
    ADD CONSTRAINT fee_payer_balance_pkey PRIMARY KEY (mode);

ALTER TABLE ONLY heartbeat
    ADD CONSTRAINT heartbeat_pkey PRIMARY KEY (mode, duty);

ALTER TABLE ONLY idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (realm_id, route, agent_id, key);

ALTER TABLE ONLY lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (name);

ALTER TABLE ONLY master_key
    ADD CONSTRAINT master_key_pkey PRIMARY KEY (version);

ALTER TABLE ONLY migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY network_cost
    ADD CONSTRAINT network_cost_pkey PRIMARY KEY (realm_id, day);

ALTER TABLE ONLY network
    ADD CONSTRAINT network_genesis_hash_key UNIQUE (genesis_hash);

ALTER TABLE ONLY network
    ADD CONSTRAINT network_pkey PRIMARY KEY (mode);

ALTER TABLE ONLY payee_account
    ADD CONSTRAINT payee_account_pkey PRIMARY KEY (realm_id, address);

ALTER TABLE ONLY payment
    ADD CONSTRAINT payment_pkey PRIMARY KEY (id);

ALTER TABLE ONLY policy
    ADD CONSTRAINT policy_pkey PRIMARY KEY (agent_id, version);

ALTER TABLE ONLY quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (agent_id, duty);

ALTER TABLE ONLY realm
    ADD CONSTRAINT realm_account_id_mode_key UNIQUE (account_id, mode);

ALTER TABLE ONLY realm
    ADD CONSTRAINT realm_pkey PRIMARY KEY (id);

ALTER TABLE ONLY recipient
    ADD CONSTRAINT recipient_pkey PRIMARY KEY (realm_id, hostname);

ALTER TABLE ONLY seal
    ADD CONSTRAINT seal_pkey PRIMARY KEY (number);

ALTER TABLE ONLY settlement_watch
    ADD CONSTRAINT settlement_watch_pkey PRIMARY KEY (mode);

ALTER TABLE ONLY spend
    ADD CONSTRAINT spend_pkey PRIMARY KEY (id);

ALTER TABLE ONLY spend_total
    ADD CONSTRAINT spend_total_pkey PRIMARY KEY (realm_id, agent_id, day, recipient, shard);

ALTER TABLE ONLY submission
    ADD CONSTRAINT submission_pkey PRIMARY KEY (payment_id, attempt);

ALTER TABLE ONLY submission
    ADD CONSTRAINT submission_signature_key UNIQUE (signature);

ALTER TABLE ONLY system_key
    ADD CONSTRAINT system_key_address_key UNIQUE (address);

ALTER TABLE ONLY system_key
    ADD CONSTRAINT system_key_pkey PRIMARY KEY (owner);

ALTER TABLE ONLY transfer
    ADD CONSTRAINT transfer_pkey PRIMARY KEY (agent_id, number);

ALTER TABLE ONLY unread_deposit
    ADD CONSTRAINT unread_deposit_pkey PRIMARY KEY (signature, token_account);

ALTER TABLE ONLY usage
    ADD CONSTRAINT usage_pkey PRIMARY KEY (agent_id, window_kind, window_start);

ALTER TABLE ONLY wallet
    ADD CONSTRAINT wallet_address_key UNIQUE (address);

ALTER TABLE ONLY wallet_key
    ADD CONSTRAINT wallet_key_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY wallet
    ADD CONSTRAINT wallet_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY wallet_stop
    ADD CONSTRAINT wallet_stop_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY webhook
    ADD CONSTRAINT webhook_pkey PRIMARY KEY (id);

ALTER TABLE ONLY webhook_secret
    ADD CONSTRAINT webhook_secret_pkey PRIMARY KEY (owner);

ALTER TABLE ONLY webhook_secret
    ADD CONSTRAINT webhook_secret_webhook_id_number_key UNIQUE (webhook_id, number);

ALTER TABLE ONLY withdrawal
    ADD CONSTRAINT withdrawal_pkey PRIMARY KEY (id);

CREATE INDEX agent_by_age ON agent USING btree (realm_id, created_at, id);

CREATE INDEX agent_by_status ON agent USING btree (realm_id, status, created_at, id);

CREATE INDEX agent_label_by_age ON agent_label USING btree (realm_id, name, value_hash, created_at, agent_id);

CREATE INDEX api_key_by_age ON api_key USING btree (realm_id, created_at, id);

CREATE INDEX api_key_by_agent ON api_key USING btree (agent_id) WHERE (agent_id IS NOT NULL);

CREATE INDEX audit_log_by_realm ON audit_log USING btree (realm_id, at, line_id);

CREATE INDEX audit_log_by_subject ON audit_log USING btree (subject, id);

CREATE INDEX console_session_by_key ON console_session USING btree (key_id, created_at);

CREATE INDEX console_session_to_forget ON console_session USING btree (expires_at);

CREATE INDEX delivery_by_event ON delivery USING btree (event_id);

CREATE INDEX delivery_by_webhook ON delivery USING btree (webhook_id, created_at, id);

CREATE INDEX delivery_due ON delivery USING btree (webhook_id, next_attempt_at) WHERE (status = 'pending'::text);

CREATE INDEX delivery_leased ON delivery USING btree (webhook_id) WHERE (leased_until IS NOT NULL);

CREATE INDEX deposit_by_age ON deposit USING brin (created_at);

CREATE INDEX deposit_by_agent ON deposit USING btree (agent_id, created_at DESC, id DESC);

CREATE INDEX deposit_without_time ON deposit USING btree (credited_at) WHERE ((status = 'credited'::text) AND (block_time IS NULL));

CREATE INDEX event_by_age ON event USING btree (realm_id, created_at, id);

CREATE INDEX event_by_agent ON event USING btree (agent_id, created_at, id);

CREATE INDEX event_by_type ON event USING btree (realm_id, type, created_at, id);

CREATE INDEX event_to_forget ON event USING brin (created_at);

CREATE INDEX idempotency_to_forget ON idempotency USING brin (created_at);

CREATE INDEX network_cost_by_day ON network_cost USING btree (day);

CREATE INDEX payment_open ON payment USING btree (mode, created_at) WHERE (state = ANY (ARRAY['waiting'::text, 'live'::text]));

CREATE INDEX recipient_by_address ON recipient USING btree (realm_id, address);

CREATE INDEX recipient_by_age ON recipient USING btree (realm_id, created_at, hostname);

CREATE INDEX spend_by_age ON spend USING btree (realm_id, created_at, id);

CREATE INDEX spend_by_agent ON spend USING btree (agent_id, created_at, id);

CREATE INDEX spend_by_recipient ON spend USING btree (realm_id, recipient, created_at, id);

CREATE INDEX spend_by_settlement ON spend USING btree (realm_id, settled_at, id) WHERE (settled_at IS NOT NULL);

CREATE INDEX spend_by_status ON spend USING btree (realm_id, status, created_at, id);

CREATE INDEX spend_opening ON spend USING btree (agent_id, pay_to) WHERE ((status = ANY (ARRAY['pending'::text, 'approved'::text])) AND (network_lamports >= 2039280));

CREATE INDEX spend_pending ON spend USING btree (agent_id) WHERE (status = 'pending'::text);

CREATE UNIQUE INDEX spend_signature ON spend USING btree (signature) WHERE (signature IS NOT NULL);

CREATE INDEX spend_to_expire ON spend USING btree (expires_at) WHERE (status = 'pending'::text);

CREATE INDEX spend_to_settle ON spend USING btree (created_at) WHERE (status = 'approved'::text);

CREATE INDEX spend_without_time ON spend USING btree (settled_at) WHERE ((status = 'settled'::text) AND (block_time IS NULL));

CREATE INDEX submission_due ON submission USING btree (mode, next_check_at) WHERE (state = 'live'::text);

CREATE UNIQUE INDEX submission_one_alive ON submission USING btree (payment_id) WHERE (state = 'live'::text);

CREATE INDEX transfer_by_xact ON transfer USING btree (xact);

CREATE UNIQUE INDEX transfer_once ON transfer USING btree (payment_id, ((kind = ANY (ARRAY['post'::text, 'void'::text]))));

CREATE INDEX unread_deposit_by_agent ON unread_deposit USING btree (agent_id) WHERE (dismissed_at IS NULL);

CREATE INDEX unread_deposit_due ON unread_deposit USING btree (next_try_at) WHERE (dismissed_at IS NULL);

CREATE INDEX usage_by_day ON usage USING btree (window_start);

CREATE INDEX wallet_held ON wallet USING btree (agent_id) WHERE held;

CREATE INDEX wallet_key_by_master ON wallet_key USING btree (master_version);

CREATE INDEX webhook_by_age ON webhook USING btree (realm_id, created_at, id);

CREATE INDEX webhook_secret_by_master ON webhook_secret USING btree (master_version);

CREATE UNIQUE INDEX webhook_secret_in_force ON webhook_secret USING btree (webhook_id) WHERE (signs_until IS NULL);

CREATE INDEX withdrawal_by_agent ON withdrawal USING btree (agent_id, created_at DESC, id DESC);

CREATE UNIQUE INDEX withdrawal_signature ON withdrawal USING btree (signature);

CREATE INDEX withdrawal_to_settle ON withdrawal USING btree (created_at) WHERE (status = 'pending'::text);

CREATE INDEX withdrawal_without_time ON withdrawal USING btree (settled_at) WHERE ((status = 'settled'::text) AND (block_time IS NULL));

CREATE TRIGGER agent_ends_for_good BEFORE UPDATE ON agent FOR EACH ROW WHEN (((old.status = 'terminated'::text) AND (new.status <> 'terminated'::text))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER api_key_is_revoked_for_good BEFORE UPDATE ON api_key FOR EACH ROW WHEN (((old.revoked_at IS NOT NULL) AND (new.revoked_at IS DISTINCT FROM old.revoked_at))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON audit_log FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER deposit_is_credited_once BEFORE UPDATE ON deposit FOR EACH ROW WHEN ((((old.status = 'credited'::text) AND ((old.block_time IS NOT NULL) OR ((to_jsonb(new.*) - 'block_time'::text) <> (to_jsonb(old.*) - 'block_time'::text)))) OR ((new.agent_id)::text <> (old.agent_id)::text) OR (new.signature <> old.signature) OR (new.token_account <> old.token_account))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER deposit_stays BEFORE DELETE OR TRUNCATE ON deposit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER payment_moves BEFORE UPDATE ON payment FOR EACH ROW WHEN (((old.state = ANY (ARRAY['settled'::text, 'failed'::text])) OR ((new.amount_micros)::bigint <> (old.amount_micros)::bigint) OR (new.destination <> old.destination) OR ((new.agent_id)::text <> (old.agent_id)::text))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER payment_stays BEFORE DELETE OR TRUNCATE ON payment FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER policy_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON policy FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER seal_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON seal FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER spend_moves BEFORE UPDATE ON spend FOR EACH ROW WHEN (((new.status <> old.status) AND (((old.status || '->'::text) || new.status) <> ALL (ARRAY['pending->approved'::text, 'pending->rejected'::text, 'approved->settled'::text, 'approved->rejected'::text])))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER spend_stays BEFORE DELETE OR TRUNCATE ON spend FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER spend_terms_are_fixed BEFORE UPDATE ON spend FOR EACH ROW WHEN ((((new.agent_id)::text <> (old.agent_id)::text) OR ((new.amount_micros)::bigint <> (old.amount_micros)::bigint) OR (new.recipient <> old.recipient) OR (new.pay_to IS DISTINCT FROM old.pay_to) OR (new.created_at <> old.created_at))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER submission_is_final BEFORE UPDATE ON submission FOR EACH ROW WHEN (((old.state <> 'live'::text) OR (new.raw <> old.raw) OR (new.signature <> old.signature))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER submission_stays BEFORE DELETE OR TRUNCATE ON submission FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER transfer_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON transfer FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER wallet_stays BEFORE DELETE OR TRUNCATE ON wallet FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER wallet_totals_only_rise BEFORE UPDATE ON wallet FOR EACH ROW WHEN ((((new.credits_posted)::bigint < (old.credits_posted)::bigint) OR ((new.debits_posted)::bigint < (old.debits_posted)::bigint) OR (new.transfers < old.transfers))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER withdrawal_moves BEFORE UPDATE ON withdrawal FOR EACH ROW WHEN ((((old.status <> 'pending'::text) AND ((old.block_time IS NOT NULL) OR ((to_jsonb(new.*) - 'block_time'::text) <> (to_jsonb(old.*) - 'block_time'::text)))) OR ((new.amount_micros)::bigint <> (old.amount_micros)::bigint) OR (new.destination <> old.destination) OR ((new.agent_id)::text <> (old.agent_id)::text))) EXECUTE FUNCTION refuse_move();

CREATE TRIGGER withdrawal_stays BEFORE DELETE OR TRUNCATE ON withdrawal FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE ONLY agent
    ADD CONSTRAINT agent_id_policy_version_fkey FOREIGN KEY (id, policy_version) REFERENCES policy(agent_id, version) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY agent_label
    ADD CONSTRAINT agent_label_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);

ALTER TABLE ONLY agent
    ADD CONSTRAINT agent_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY api_key
    ADD CONSTRAINT api_key_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);

ALTER TABLE ONLY api_key
    ADD CONSTRAINT api_key_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY audit_log
    ADD CONSTRAINT audit_log_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY console_session
    ADD CONSTRAINT console_session_key_id_fkey FOREIGN KEY (key_id) REFERENCES api_key(id);

ALTER TABLE ONLY delivery
    ADD CONSTRAINT delivery_event_id_fkey FOREIGN KEY (event_id) REFERENCES event(id) ON DELETE CASCADE;

ALTER TABLE ONLY deposit
    ADD CONSTRAINT deposit_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);

ALTER TABLE ONLY network_cost
    ADD CONSTRAINT network_cost_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY payee_account
    ADD CONSTRAINT payee_account_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY policy
    ADD CONSTRAINT policy_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(id);

ALTER TABLE ONLY realm
    ADD CONSTRAINT realm_account_id_fkey FOREIGN KEY (account_id) REFERENCES account(id);

ALTER TABLE ONLY recipient
    ADD CONSTRAINT recipient_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY submission
    ADD CONSTRAINT submission_payment_id_fkey FOREIGN KEY (payment_id) REFERENCES payment(id);

ALTER TABLE ONLY system_key
    ADD CONSTRAINT system_key_master_version_fkey FOREIGN KEY (master_version) REFERENCES master_key(version);

ALTER TABLE ONLY unread_deposit
    ADD CONSTRAINT unread_deposit_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);

ALTER TABLE ONLY wallet
    ADD CONSTRAINT wallet_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);

ALTER TABLE ONLY wallet_key
    ADD CONSTRAINT wallet_key_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(id);

ALTER TABLE ONLY wallet_key
    ADD CONSTRAINT wallet_key_master_version_fkey FOREIGN KEY (master_version) REFERENCES master_key(version);

ALTER TABLE ONLY wallet_stop
    ADD CONSTRAINT wallet_stop_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(id);

ALTER TABLE ONLY webhook
    ADD CONSTRAINT webhook_realm_id_fkey FOREIGN KEY (realm_id) REFERENCES realm(id);

ALTER TABLE ONLY webhook_secret
    ADD CONSTRAINT webhook_secret_master_version_fkey FOREIGN KEY (master_version) REFERENCES master_key(version);

ALTER TABLE ONLY webhook_secret
    ADD CONSTRAINT webhook_secret_webhook_id_fkey FOREIGN KEY (webhook_id) REFERENCES webhook(id) ON DELETE CASCADE;

ALTER TABLE ONLY withdrawal
    ADD CONSTRAINT withdrawal_agent_id_realm_id_fkey FOREIGN KEY (agent_id, realm_id) REFERENCES agent(id, realm_id);
