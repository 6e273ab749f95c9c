-- The history: one row for each attempt that ended, written by the statement that wrote the work row.
--
-- It is asked for one thing, how old a key is, and nothing of it may stand in a transition's way. So no constraint
-- can refuse a row but NOT NULL, and the only index is the one that finds a workflow's own rows: by hash, since keys come
-- in no order, and comparing them in a tree costs more than all the rest of the row. The replica identity lets old rows be
-- deleted where everything is published (FOR ALL TABLES); it costs only where a row is deleted.

CREATE SCHEMA IF NOT EXISTS postrider;

CREATE TABLE IF NOT EXISTS postrider.work_history (
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL DEFAULT now(),
    fence       bigint      NOT NULL,
    work_table  regclass    NOT NULL,
    epoch       int         NOT NULL,
    attempt     int         NOT NULL,
    deferrals   int         NOT NULL,
    http_status int,
    key         text[]      NOT NULL,
    stage       text        NOT NULL,
    definition  text,
    owner       text,
    outcome     text        NOT NULL,
    reason      text,
    next_stage  text        NOT NULL,
    next_state  text        NOT NULL
);

ALTER TABLE postrider.work_history REPLICA IDENTITY FULL;

CREATE INDEX IF NOT EXISTS work_history_key_idx ON postrider.work_history USING hash (key);

COMMENT ON TABLE postrider.work_history IS
    'One row for each attempt that ended: who made it, how long it took, what came of it.';
COMMENT ON COLUMN postrider.work_history.started_at IS
    'When the attempt was claimed: the work row''s updated_at, which the claim wrote.';
COMMENT ON COLUMN postrider.work_history.ended_at IS
    'When its end was written. Less started_at it is what the attempt took.';
COMMENT ON COLUMN postrider.work_history.fence IS
    'The fence that the attempt was claimed under.';
COMMENT ON COLUMN postrider.work_history.work_table IS
    'The work table whose row it was.';
COMMENT ON COLUMN postrider.work_history.epoch IS
    'The row''s epoch: part of the idempotency key that was sent.';
COMMENT ON COLUMN postrider.work_history.attempt IS
    'Which attempt of its stage it was, from 1; a deferral gives its number back.';
COMMENT ON COLUMN postrider.work_history.deferrals IS
    'How often the stage had been put off before.';
COMMENT ON COLUMN postrider.work_history.http_status IS
    'The status that was answered; null where no answer came, or nothing was sent.';
COMMENT ON COLUMN postrider.work_history.key IS
    'The texts of the work row''s key columns, in the order of the configuration.';
COMMENT ON COLUMN postrider.work_history.stage IS
    'The stage that was tried.';
COMMENT ON COLUMN postrider.work_history.definition IS
    'The workflow definition that the row was under, as name@version.';
COMMENT ON COLUMN postrider.work_history.owner IS
    'Who had claimed it: random per process start.';
COMMENT ON COLUMN postrider.work_history.outcome IS
    'done, done_by_receiver, retry, deferred, parked, unknown, released (given back unsent), taken_over, interrupted (by an operator, or by a write without the fence).';
COMMENT ON COLUMN postrider.work_history.reason IS
    'Why it did not end well; never a payload.';
COMMENT ON COLUMN postrider.work_history.next_stage IS
    'The stage that the row is in from then on.';
COMMENT ON COLUMN postrider.work_history.next_state IS
    'The state that the row is in from then on.';
