-- Master keys that can be replaced while the service runs, keys that live with a provider, and the
-- service's own keys: the fee payer of each mode.

-- The master keys in force. The version is an id computed from the key, so that every process finds
-- the right one whatever order they were configured in. A version can only be retired when nothing
-- is sealed with it, and from then on nothing can be: the foreign keys see to both.
CREATE TABLE master_key (
  version  integer PRIMARY KEY CHECK (version >= 1),
  added_at timestamptz(3) NOT NULL DEFAULT moment()
);
INSERT INTO master_key (version) SELECT DISTINCT master_version FROM wallet_key;

ALTER TABLE wallet_key
  ADD COLUMN provider text NOT NULL DEFAULT 'embedded',
  ADD FOREIGN KEY (master_version) REFERENCES master_key;
CREATE INDEX wallet_key_by_master ON wallet_key (master_version);

-- Keys of the service itself, sealed like those of wallets. The owner says what a key is for.
CREATE TABLE system_key (
  owner          text COLLATE "C" PRIMARY KEY,
  address        text NOT NULL UNIQUE,
  key_version    integer NOT NULL CHECK (key_version >= 1),
  master_version integer NOT NULL REFERENCES master_key,
  sealed         bytea NOT NULL,
  provider       text NOT NULL,
  created_at     timestamptz(3) NOT NULL DEFAULT moment()
);
