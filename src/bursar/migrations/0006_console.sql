-- Who is signed in to the console. The token is in the browser's cookie and nowhere else: what is
-- kept is its hash, and which key it stands for.
CREATE TABLE console_session (
  token_hash sha256 PRIMARY KEY,
  key_id     id NOT NULL REFERENCES api_key,
  created_at timestamptz(3) NOT NULL DEFAULT moment(),
  expires_at timestamptz(3) NOT NULL,
  CHECK (expires_at > created_at)
);
CREATE INDEX console_session_by_key ON console_session (key_id, created_at);
CREATE INDEX console_session_to_forget ON console_session (expires_at);
