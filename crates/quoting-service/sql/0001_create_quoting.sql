-- The quoting service's own tables: the business it does, and its own record of what it was asked.
--
-- The two tables of effects have no unique constraint beside their id: an effect that happened twice is two rows, and
-- nothing in the database hides it.

CREATE SCHEMA IF NOT EXISTS quoting;

CREATE TABLE IF NOT EXISTS quoting.quotes (
    group_id    text        NOT NULL,
    quote_id    text        NOT NULL,
    premium     numeric,
    created_at  timestamptz NOT NULL DEFAULT now(),
    approved_at timestamptz,
    bound_at    timestamptz,
    issued_at   timestamptz,
    CONSTRAINT quotes_pkey PRIMARY KEY (group_id, quote_id)
) WITH (fillfactor = 50);

COMMENT ON TABLE quoting.quotes IS
    'The business: one row per quote.';

CREATE TABLE IF NOT EXISTS quoting.stage_effects (
    id       bigint GENERATED ALWAYS AS IDENTITY,
    group_id text        NOT NULL,
    quote_id text        NOT NULL,
    stage    text        NOT NULL,
    fence    bigint      NOT NULL,
    attempt  int         NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT stage_effects_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE quoting.stage_effects IS
    'One row each time a stage''s work was done, in the transaction that did it.';

CREATE TABLE IF NOT EXISTS quoting.requests (
    id              bigint GENERATED ALWAYS AS IDENTITY,
    group_id        text        NOT NULL,
    quote_id        text        NOT NULL,
    stage           text        NOT NULL,
    idempotency_key text        NOT NULL,
    attempt         int         NOT NULL,
    fence           bigint      NOT NULL,
    replayed        boolean,
    received_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    answered_at     timestamptz,
    fingerprint     bytea       NOT NULL,
    answer_hash     bytea,
    CONSTRAINT requests_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50);

COMMENT ON TABLE quoting.requests IS
    'One row per stage request received, written outside the business transaction.';
COMMENT ON COLUMN quoting.requests.replayed IS
    'Whether the answer was a stored one; null if the request was not executed, or its outcome is not known yet.';
COMMENT ON COLUMN quoting.requests.answered_at IS
    'When an answer was handed to the connection; null if there is none yet, or it was dropped on purpose.';

COMMENT ON COLUMN quoting.requests.fingerprint IS
    'SHA-256 of the request: what the receiver compares under one key.';
COMMENT ON COLUMN quoting.requests.answer_hash IS
    'SHA-256 over status and body of the answer that was handed to the connection.';

CREATE TABLE IF NOT EXISTS quoting.event_effects (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    event_id      uuid        NOT NULL,
    aggregate_key text        NOT NULL,
    event_type    text        NOT NULL,
    seq           bigint,
    received_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT event_effects_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE quoting.event_effects IS
    'One row each time an event was acted on, in the transaction that acted.';
COMMENT ON COLUMN quoting.event_effects.seq IS
    'The payload''s member seq, by which a test sees the order of one aggregate''s events; null if it has none.';

CREATE TABLE IF NOT EXISTS quoting.event_requests (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    event_id      uuid        NOT NULL,
    aggregate_key text        NOT NULL,
    received_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    replayed      boolean,
    CONSTRAINT event_requests_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE quoting.event_requests IS
    'One row per event delivery received, written outside the business transaction.';
