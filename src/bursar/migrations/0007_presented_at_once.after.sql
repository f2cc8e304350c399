-- Prices a purchase and presents it in one step, where its spend was approved at once. It takes
-- nothing from older versions; those that know of it do without as long as it is not there.

-- As `price_purchase` for a spend that was approved, written just before, and then as
-- `standing_to_sign` and what follows it, with the header that pays: the caller has locked the
-- realm, for the stop, and the write the wallet. Raises where the purchase is no longer open, its
-- seller is not paid at what was decided on, or nothing may be signed for the wallet now: then
-- nothing of the transaction stands, and the steps by themselves say which it was.
CREATE FUNCTION present_purchase(
  buyer text, priced text, decided text, spoken text, listed_at text, pinned_to text,
  signed_raw bytea, signed_with text, paid_by text, signed_on text, dead_after bigint,
  signed_in bigint, unanswered_millis integer,
  kept_owner text, kept_kind text, kept_version integer, kept_sealed bytea, kept_bytes integer,
  kept_days integer)
RETURNS SETOF purchase LANGUAGE plpgsql AS $$
DECLARE
  signed_now timestamptz := moment();
BEGIN
  RETURN QUERY
    UPDATE purchase p
       SET protocol = spoken, amount_micros = s.amount_micros, pay_to = s.pay_to, spend_id = s.id,
           status = 'presented', raw = signed_raw, signature = signed_with, fee_payer = paid_by,
           blockhash = signed_on, last_valid_height = dead_after, signed_slot = signed_in,
           signed_at = signed_now, updated_at = signed_now, busy_until = NULL,
           next_check_at = clock_timestamp() + unanswered_millis * interval '1 millisecond'
      FROM spend s
      JOIN wallet w ON w.agent_id = s.agent_id AND NOT w.is_frozen
     WHERE p.id = priced AND p.agent_id = buyer AND p.status = 'open' AND p.called_off_by IS NULL
       AND s.id = decided AND s.agent_id = buyer AND s.verdict = 'approved'
       AND (SELECT r.address FROM recipient r
             WHERE r.realm_id = p.realm_id AND r.hostname = p.host) IS NOT DISTINCT FROM listed_at
       AND (SELECT n.address FROM pin n
             WHERE n.realm_id = p.realm_id AND n.origin = p.origin) IS NOT DISTINCT FROM pinned_to
       AND EXISTS (SELECT FROM settlement_watch h
                    WHERE h.mode = p.mode AND h.timeline = history() AND h.life = server_life()
                      AND (h.careful_before IS NULL
                           OR EXISTS (SELECT FROM outflows_known o
                                       WHERE o.agent_id = buyer AND o.timeline = h.timeline)))
    RETURNING p.*;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the purchase, where its seller is paid, or what its wallet may do has changed'
      USING ERRCODE = 'serialization_failure';
  END IF;
  INSERT INTO purchase_secret (owner, purchase_id, kind, agent_id, master_version, sealed, bytes,
                               expires_at)
  VALUES (kept_owner, priced, kept_kind, buyer, kept_version, kept_sealed, kept_bytes,
          moment() + make_interval(days => kept_days));
END $$;
