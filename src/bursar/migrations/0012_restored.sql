-- Attempts on the chain up to this slot that the database does not know are explained: by a restore
-- that was noticed. NULL until the first look that comes after the quiet.
ALTER TABLE settlement_watch ADD COLUMN explained_slot bigint CHECK (explained_slot >= 0);
