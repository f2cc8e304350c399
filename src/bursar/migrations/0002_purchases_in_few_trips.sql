-- Each step of a purchase that writes, in one round trip. A statement by itself is a transaction,
-- so what has to look several times, each time at what was committed before, is a function here:
-- every statement of a function looks anew.

-- Called by a statement that is a transaction by itself, which promises what `Database.transact`
-- promises: what it acknowledged is on the disk, whatever a role or a database has as its default.
-- Where another isolation level is the default it raises, and the statement runs in a transaction
-- that says which it wants.
CREATE FUNCTION durably() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a statement by itself is written at READ COMMITTED'
      USING ERRCODE = 'invalid_transaction_state';
  END IF;
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- Begins a purchase, with the order that is kept of it, or finds the one that the same request made
-- before: by its key, or as one of the same within so many seconds that did not come to nothing.
-- Nothing is returned where as many as may be are under way. A refused one takes no room, and
-- nothing is kept of it.
CREATE FUNCTION begin_purchase(
  given jsonb, busy_seconds float8, same_seconds float8,
  most_of_account integer, most_of_agent integer, most_of_host integer,
  kept_owner text, kept_kind text, kept_version integer, kept_sealed bytea, kept_bytes integer,
  kept_days integer)
RETURNS SETOF purchase LANGUAGE plpgsql AS $$
DECLARE
  asked    purchase := jsonb_populate_record(NULL::purchase, given);
  others   record;
  began_at timestamptz;
BEGIN
  PERFORM durably();
  -- Takes turns, so it comes first.
  SELECT * INTO others
    FROM purchases_under_way(asked.realm_id, asked.agent_id, asked.host);
  IF asked.idempotency_key IS NOT NULL THEN
    RETURN QUERY SELECT p.* FROM purchase p
      WHERE p.realm_id = asked.realm_id AND p.agent_id = asked.agent_id
        AND p.idempotency_key = asked.idempotency_key;
    IF FOUND THEN
      RETURN;
    END IF;
  ELSIF same_seconds > 0 THEN
    RETURN QUERY SELECT p.* FROM purchase p
      WHERE p.realm_id = asked.realm_id AND p.agent_id = asked.agent_id
        AND p.digest = asked.digest
        AND p.created_at > moment() - make_interval(secs => same_seconds)
        AND p.status NOT IN ('failed', 'rejected', 'unpaid')
      ORDER BY p.created_at DESC LIMIT 1;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF asked.status = 'open' AND (
    others.of_account >= most_of_account OR others.of_agent >= most_of_agent
    OR others.of_host >= most_of_host)
  THEN
    RETURN;
  END IF;
  -- It may have waited for its turn since it was read.
  began_at := greatest(asked.created_at, moment());
  RETURN QUERY
    INSERT INTO purchase (id, realm_id, agent_id, mode, url, method, host, origin, max_micros, memo,
                          metadata, brought, digest, idempotency_key, fingerprint, created_by,
                          created_at, status, reject_code, refusal, updated_at, busy_until)
    VALUES (asked.id, asked.realm_id, asked.agent_id, asked.mode, asked.url, asked.method,
            asked.host, asked.origin, asked.max_micros, asked.memo, asked.metadata, asked.brought,
            asked.digest, asked.idempotency_key, asked.fingerprint, asked.created_by,
            began_at, asked.status, asked.reject_code, asked.refusal, began_at,
            CASE WHEN asked.status = 'open'
                 THEN clock_timestamp() + make_interval(secs => busy_seconds) END)
    RETURNING *;
  IF kept_owner IS NOT NULL THEN
    INSERT INTO purchase_secret (owner, purchase_id, kind, agent_id, master_version, sealed, bytes,
                                 expires_at)
    VALUES (kept_owner, asked.id, kept_kind, asked.agent_id, kept_version, kept_sealed, kept_bytes,
            moment() + make_interval(days => kept_days));
  END IF;
END $$;

-- The price of a purchase, and what its spend, written just before, was decided to be: one that was
-- approved leaves it open. Raises where it is no longer open, or where its seller is not paid at
-- what was decided on, by the directory and by the pin: then nothing of the transaction stands.
CREATE FUNCTION price_purchase(
  buyer text, priced text, decided text, spoken text, listed_at text, pinned_to text)
RETURNS SETOF purchase LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY
    UPDATE purchase p
       SET protocol = spoken, amount_micros = s.amount_micros, pay_to = s.pay_to, spend_id = s.id,
           status = CASE s.verdict WHEN 'approved' THEN 'open' ELSE s.verdict END,
           reject_code = s.reject_code, updated_at = moment(),
           busy_until = CASE s.verdict WHEN 'approved' THEN p.busy_until END
      FROM spend s
     WHERE p.id = priced AND p.agent_id = buyer AND p.status = 'open'
       AND s.id = decided AND s.agent_id = buyer
       AND (SELECT r.address FROM recipient r
             WHERE r.realm_id = p.realm_id AND r.hostname = p.host) IS NOT DISTINCT FROM listed_at
       AND (SELECT n.address FROM pin n
             WHERE n.realm_id = p.realm_id AND n.origin = p.origin) IS NOT DISTINCT FROM pinned_to
    RETURNING p.*;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the purchase, or where its seller is paid, has changed'
      USING ERRCODE = 'serialization_failure';
  END IF;
END $$;

-- What a signature for a purchase rests on. Locks the realm, for the stop, then the wallet: under
-- these locks it stays so until the transaction ends. After a failover or a restore what the
-- database forgot may have been paid, so the outflows have to be known; until the worker has noted
-- which history this is, which it does when it starts, they are not.
CREATE FUNCTION standing_to_sign(realm integer, buyer text, in_mode text, paid_by text)
RETURNS TABLE (is_stopped boolean, is_approved boolean, is_frozen boolean,
               outflows_are_known boolean)
LANGUAGE plpgsql AS $$
DECLARE
  stopped boolean;
BEGIN
  PERFORM durably();
  SELECT r.stop_holds_unsigned INTO stopped FROM realm r WHERE r.id = realm FOR SHARE;
  PERFORM FROM wallet w WHERE w.agent_id = buyer AND w.realm_id = realm FOR NO KEY UPDATE;
  RETURN QUERY
    SELECT stopped, coalesce(s.status = 'approved', false), w.is_frozen,
           coalesce((SELECT h.timeline = history() AND h.life = server_life()
                            AND (h.careful_before IS NULL
                                 OR EXISTS (SELECT FROM outflows_known o
                                             WHERE o.agent_id = buyer
                                               AND o.timeline = h.timeline))
                       FROM settlement_watch h
                      WHERE h.mode = in_mode), false)
      FROM wallet w
      LEFT JOIN spend s ON s.id = paid_by AND s.agent_id = w.agent_id
     WHERE w.agent_id = buyer AND w.realm_id = realm;
END $$;
