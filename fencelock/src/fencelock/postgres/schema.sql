-- The tables of the locks. They are made at first use; where the program's user may not make any, let the owner of the
-- schema run this, and grant that user:
--   GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_names, fencelock_contenders TO the_user;
--   GRANT SELECT ON fencelock_source TO the_user;
--   GRANT USAGE ON SEQUENCE fencelock_tokens TO the_user;

-- One counter for all tokens, places and revisions: tokens of different locks can be compared.
CREATE SEQUENCE IF NOT EXISTS fencelock_tokens;

-- Whose numbers these are. A restored dump has the same id, and lower tokens.
CREATE TABLE IF NOT EXISTS fencelock_source (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO fencelock_source DEFAULT VALUES ON CONFLICT DO NOTHING;

-- A row while somebody contends for the lock, or something is recorded: whoever changes its queue has this row locked.
CREATE TABLE IF NOT EXISTS fencelock_names (
  name bytea PRIMARY KEY,
  record bytea,
  recorder uuid,
  recorded bigint
) WITH (fillfactor = 50);

-- A contender, from its arrival until it gives back or its lease is over. With a token: the owner.
CREATE TABLE IF NOT EXISTS fencelock_contenders (
  holder uuid PRIMARY KEY,
  name bytea NOT NULL,
  place bigint NOT NULL,
  owner text NOT NULL,
  expires_at timestamptz NOT NULL,
  token bigint,
  value bytea,
  revision bigint,
  said bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX IF NOT EXISTS fencelock_queue ON fencelock_contenders (name, place);
-- There is one owner at most, whatever a program does.
CREATE UNIQUE INDEX IF NOT EXISTS fencelock_owner ON fencelock_contenders (name) WHERE token IS NOT NULL;
