-- How many spends of an agent wait for a person: bounded, so counted under its wallet's lock.
CREATE INDEX spend_pending ON spend (agent_id) WHERE status = 'pending';

DROP FUNCTION lock_agents(text[], integer[], text);
CREATE FUNCTION lock_agents(agent_ids text[], realm_ids integer[], locking text)
RETURNS TABLE (
  agent_id id, realm_id integer, address text, mint text, wallet_status text,
  credits_posted bigint, debits_posted bigint, debits_pending bigint, transfers bigint,
  decisions bigint, is_low boolean, last_funded_at timestamptz, now timestamptz,
  agent_status text, policy_version integer, spent_today_micros bigint, pending_count bigint,
  directory_epoch text, has_webhooks boolean, history text)
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
           coalesce(u.spent_micros, 0)::bigint,
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
