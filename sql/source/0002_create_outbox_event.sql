-- The outbox: a row inserted here in a business transaction is delivered if that transaction commits.
--
-- The log is what is read, never the table, so rows may be deleted at any time, even in the transaction that inserts them.

CREATE TABLE IF NOT EXISTS outbox_event (
    id            uuid        NOT NULL DEFAULT gen_random_uuid(),
    aggregate_key text        NOT NULL,
    event_type    text        NOT NULL,
    payload       jsonb,
    headers       jsonb,
    topic         text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    published_at  timestamptz,
    CONSTRAINT outbox_event_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE outbox_event IS
    'Events to be delivered, written in the transaction whose effect they tell of.';
COMMENT ON COLUMN outbox_event.id IS
    'The event''s identity, the same however often and by whatever way it is delivered.';
COMMENT ON COLUMN outbox_event.aggregate_key IS
    'The ordering key: events of one key are first delivered in commit order.';
COMMENT ON COLUMN outbox_event.event_type IS
    'What happened, as a name that consumers select on.';
COMMENT ON COLUMN outbox_event.payload IS
    'What happened, in full; null is a valid payload.';
COMMENT ON COLUMN outbox_event.headers IS
    'Further text values that travel beside the payload, as one JSON object.';
COMMENT ON COLUMN outbox_event.topic IS
    'Where the event goes, for sinks that have topics; null leaves it to the configuration.';
COMMENT ON COLUMN outbox_event.created_at IS
    'When the event''s transaction began.';
COMMENT ON COLUMN outbox_event.published_at IS
    'Set by a poller that publishes the same table; an update that sets only this column is ignored.';
