-- Where the answers that are old enough to go are read. A BRIN index was enough while rows lay in
-- the order of their age; once pages are reused, each holds young rows and old ones, and a sweep
-- that finds nothing reads half of the table. A migration of its own, so that while it is built
-- only writes wait, and not also those who read.
CREATE INDEX idempotency_by_age ON idempotency (created_at);
