-- Sessions of the console can be looked at and ended one by one. The defaults are for those that
-- are already there, and for nodes of the version before.
ALTER TABLE console_session
  -- What a session is called on pages: its hash would tell whether a token fits.
  ADD COLUMN id id NOT NULL UNIQUE
    DEFAULT 'ses_' || left(replace(gen_random_uuid()::text, '-', ''), 26),
  ADD COLUMN last_used_at timestamptz(3) NOT NULL DEFAULT moment(),
  -- Where it was last used from, as far as it is known.
  ADD COLUMN address text NOT NULL DEFAULT '' CHECK (length(address) <= 100),
  -- What the browser called itself when it signed in.
  ADD COLUMN browser text NOT NULL DEFAULT '' CHECK (length(browser) <= 200);
