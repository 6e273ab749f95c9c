-- What people ordered by hand: one row for each row or stage that an order changed, written by the statement that changed it.
--
-- Rows are added and never changed; Postrider deletes none of them.

CREATE SCHEMA IF NOT EXISTS postrider;

CREATE TABLE IF NOT EXISTS postrider.operator_actions (
    id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    at            timestamptz NOT NULL DEFAULT now(),
    work_table    regclass    NOT NULL,
    key           text[],
    verb          text        NOT NULL,
    who           text        NOT NULL,
    database_user text        NOT NULL DEFAULT session_user,
    why           text        NOT NULL,
    evidence      text,
    stage_before  text,
    state_before  text,
    fence_before  bigint,
    reason_before text,
    stage_after   text,
    state_after   text,
    fence_after   bigint,
    epoch_after   int,
    CONSTRAINT operator_actions_pkey PRIMARY KEY (id)
);

CREATE INDEX IF NOT EXISTS operator_actions_key_idx ON postrider.operator_actions USING hash (key);

COMMENT ON TABLE postrider.operator_actions IS
    'What people ordered by hand, with who, why and evidence.';
COMMENT ON COLUMN postrider.operator_actions.id IS
    'Counts the actions.';
COMMENT ON COLUMN postrider.operator_actions.at IS
    'When the order took effect.';
COMMENT ON COLUMN postrider.operator_actions.work_table IS
    'The work table that it was for.';
COMMENT ON COLUMN postrider.operator_actions.key IS
    'The texts of the work row''s key columns, in the order of the configuration; null for an order that is for no single row.';
COMMENT ON COLUMN postrider.operator_actions.verb IS
    'The order, as it is typed.';
COMMENT ON COLUMN postrider.operator_actions.who IS
    'Who ordered it, as they said, or as the machine knows them.';
COMMENT ON COLUMN postrider.operator_actions.database_user IS
    'The role that it was written under.';
COMMENT ON COLUMN postrider.operator_actions.why IS
    'Why, as they said.';
COMMENT ON COLUMN postrider.operator_actions.evidence IS
    'What it rests on: a ticket, an answer, a record at a provider.';
COMMENT ON COLUMN postrider.operator_actions.stage_before IS
    'The row''s stage before.';
COMMENT ON COLUMN postrider.operator_actions.state_before IS
    'The row''s state before.';
COMMENT ON COLUMN postrider.operator_actions.fence_before IS
    'The row''s fence before.';
COMMENT ON COLUMN postrider.operator_actions.reason_before IS
    'The row''s last_error before.';
COMMENT ON COLUMN postrider.operator_actions.stage_after IS
    'The row''s stage after.';
COMMENT ON COLUMN postrider.operator_actions.state_after IS
    'The row''s state after.';
COMMENT ON COLUMN postrider.operator_actions.fence_after IS
    'The row''s fence after: one higher, so that nobody who held the row before can write it.';
COMMENT ON COLUMN postrider.operator_actions.epoch_after IS
    'The row''s epoch after.';
