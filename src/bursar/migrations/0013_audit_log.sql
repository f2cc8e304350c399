-- The audit log can be read through the API, newest first, by whoever it concerns.

-- What a line is called outside: the number in `id` would tell one account how much the others do.
-- The default is for the lines that are already there, and for nodes of the version before.
ALTER TABLE audit_log ADD COLUMN line_id id NOT NULL
  DEFAULT 'log_' || left(replace(gen_random_uuid()::text, '-', ''), 26);
CREATE INDEX audit_log_by_realm ON audit_log (realm_id, at, line_id);
