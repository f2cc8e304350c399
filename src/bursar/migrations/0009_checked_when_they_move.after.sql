-- PostgreSQL reads the CHECKs of a table anew for every statement that writes it, also those that
-- are about columns which the statement never names: a third of what a lone spend took it. The
-- same rules as triggers of just those columns are read when one of them is written.

-- At once, and before anything else: a spend that locked its wallet's row would wait for a weaker
-- lock of this, and this for that spend to end.
LOCK TABLE wallet, spend, payment IN ACCESS EXCLUSIVE MODE;

-- A wallet's status: spends are decided without it.
CREATE TRIGGER wallet_status_check
  BEFORE INSERT OR UPDATE OF status ON wallet FOR EACH ROW
  WHEN (NEW.status NOT IN ('provisioned', 'funded', 'depleted'))
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER status_follows_balance
  BEFORE INSERT OR UPDATE OF status, credits_posted, debits_posted ON wallet FOR EACH ROW
  WHEN ((NEW.status = 'funded') <> (NEW.credits_posted - NEW.debits_posted > 0))
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER funded_has_a_date
  BEFORE INSERT OR UPDATE OF status, last_funded_at ON wallet FOR EACH ROW
  WHEN ((NEW.status = 'provisioned') <> (NEW.last_funded_at IS NULL))
  EXECUTE FUNCTION refuse_move();
ALTER TABLE wallet
  DROP CONSTRAINT wallet_status_check,
  DROP CONSTRAINT status_follows_balance,
  DROP CONSTRAINT funded_has_a_date;
-- Its totals: a spend counts as decided and reserves, and posts nothing.
DROP TRIGGER wallet_totals_only_rise ON wallet;
CREATE TRIGGER wallet_totals_only_rise
  BEFORE UPDATE OF credits_posted, debits_posted, forgotten, rules ON wallet FOR EACH ROW
  WHEN (NEW.credits_posted < OLD.credits_posted OR NEW.debits_posted < OLD.debits_posted
        OR NEW.forgotten < OLD.forgotten OR NEW.rules < OLD.rules)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER wallet_decisions_only_rise
  BEFORE UPDATE OF transfers, decisions, windows_at ON wallet FOR EACH ROW
  WHEN (NEW.transfers < OLD.transfers OR NEW.decisions < OLD.decisions
        OR NEW.windows_at < OLD.windows_at
        OR NEW.windows_at IS NULL AND OLD.windows_at IS NOT NULL)
  EXECUTE FUNCTION refuse_move();

-- What becomes of a spend after its decision: it is written without these columns.
CREATE TRIGGER settled_is_on_chain
  BEFORE UPDATE OF status, signature, settled_at, block_time ON spend FOR EACH ROW
  WHEN ((NEW.status = 'settled') <> (NEW.signature IS NOT NULL)
        OR (NEW.status = 'settled') <> (NEW.settled_at IS NOT NULL)
        OR NEW.status <> 'settled' AND NEW.block_time IS NOT NULL)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER decided_by_someone
  BEFORE UPDATE OF decided_by, decided_at, decision_reason ON spend FOR EACH ROW
  WHEN ((NEW.decided_by IS NULL) <> (NEW.decided_at IS NULL)
        OR NEW.decided_by IS NULL AND NEW.decision_reason IS NOT NULL)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER spend_costs_are_costs
  BEFORE UPDATE OF fee_lamports, rent_lamports ON spend FOR EACH ROW
  WHEN (NEW.fee_lamports < 0 OR NEW.rent_lamports < 0)
  EXECUTE FUNCTION refuse_move();
ALTER TABLE spend
  DROP CONSTRAINT settled_is_on_chain,
  DROP CONSTRAINT decided_by_someone,
  DROP CONSTRAINT spend_fee_lamports_check,
  DROP CONSTRAINT spend_rent_lamports_check;
-- What never changes is looked at when it would.
DROP TRIGGER spend_moves ON spend;
CREATE TRIGGER spend_moves BEFORE UPDATE OF status ON spend FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '->' || NEW.status NOT IN (
    'pending->approved', 'pending->rejected', 'approved->settled', 'approved->rejected'))
  EXECUTE FUNCTION refuse_move();
DROP TRIGGER spend_terms_are_fixed ON spend;
CREATE TRIGGER spend_terms_are_fixed
  BEFORE UPDATE OF agent_id, amount_micros, recipient, pay_to, created_at, verdict, purchase_id,
                   budget_id, terms, used, idempotency_key, fingerprint ON spend FOR EACH ROW
  WHEN (NEW.agent_id <> OLD.agent_id OR NEW.amount_micros <> OLD.amount_micros
        OR NEW.recipient <> OLD.recipient OR NEW.pay_to IS DISTINCT FROM OLD.pay_to
        OR NEW.created_at <> OLD.created_at OR NEW.verdict <> OLD.verdict
        OR NEW.purchase_id IS DISTINCT FROM OLD.purchase_id
        OR NEW.budget_id IS DISTINCT FROM OLD.budget_id
        OR NEW.terms <> OLD.terms OR NEW.used <> OLD.used
        OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key
        OR NEW.fingerprint IS DISTINCT FROM OLD.fingerprint)
  EXECUTE FUNCTION refuse_move();

-- A payment begins as its columns' defaults say.
CREATE TRIGGER payment_state_check BEFORE UPDATE OF state ON payment FOR EACH ROW
  WHEN (NEW.state NOT IN ('waiting', 'live', 'settled', 'failed'))
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER payment_counts_up BEFORE UPDATE OF attempts, cost_lamports ON payment FOR EACH ROW
  WHEN (NEW.attempts < 0 OR NEW.cost_lamports < 0)
  EXECUTE FUNCTION refuse_move();
CREATE TRIGGER called_off_is_not_signed
  BEFORE UPDATE OF called_off_by, attempts, state ON payment FOR EACH ROW
  WHEN (NEW.called_off_by IS NOT NULL AND (NEW.attempts <> 0 OR NEW.state = 'live'))
  EXECUTE FUNCTION refuse_move();
ALTER TABLE payment
  DROP CONSTRAINT payment_state_check,
  DROP CONSTRAINT payment_attempts_check,
  DROP CONSTRAINT payment_cost_lamports_check,
  DROP CONSTRAINT called_off_is_not_signed;
