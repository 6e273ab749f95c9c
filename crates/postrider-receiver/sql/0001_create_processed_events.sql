-- The inbox: which events a consumer has already acted on.
--
-- once() comes first, in the same transaction as the effect, and the effect happens only if it returned true. In a
-- transaction of its own it would lose the event when the process dies before the effect.

CREATE SCHEMA IF NOT EXISTS postrider_receiver;

COMMENT ON SCHEMA postrider_receiver IS
    'What a receiving service needs to make repeats harmless.';

CREATE TABLE IF NOT EXISTS postrider_receiver.processed_events (
    consumer     text        NOT NULL,
    event_id     text        NOT NULL,
    position     text,
    processed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT processed_events_pkey PRIMARY KEY (consumer, event_id)
);

COMMENT ON TABLE postrider_receiver.processed_events IS
    'One row per event and consumer, committed together with the consumer''s effect.';
COMMENT ON COLUMN postrider_receiver.processed_events.consumer IS
    'Which effect the event was processed for; two consumers in one database never share a name.';
COMMENT ON COLUMN postrider_receiver.processed_events.event_id IS
    'The event''s identity as it was delivered, the header webhook-id.';
COMMENT ON COLUMN postrider_receiver.processed_events.position IS
    'Where the event stood in the log when it was first acted on, the header Postrider-Position; null if it had none.';
COMMENT ON COLUMN postrider_receiver.processed_events.processed_at IS
    'When the transaction that acted on the event began.';

-- Returns true if the event is new to the consumer and false if it is a repeat. A concurrent delivery of the same event
-- waits on the index entry until the first one's transaction ends: after a commit it returns false, after a rollback
-- true. Under REPEATABLE READ it raises 40001 after a commit: run the transaction again.
CREATE OR REPLACE FUNCTION postrider_receiver.once(consumer text, event_id text, event_position text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO postrider_receiver.processed_events (consumer, event_id, position)
    VALUES (once.consumer, once.event_id, once.event_position)
    ON CONFLICT ON CONSTRAINT processed_events_pkey DO NOTHING;
    RETURN FOUND;
END
$$;
