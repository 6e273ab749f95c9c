-- What people hold back: one row for each stage or endpoint that is paused, deleted when it is resumed.
--
-- Executors read it with the open rows. The statement that writes it also sends a logical message, so that those that run hear of it at
-- once; a row that is written by hand is seen at the next sweep.

CREATE SCHEMA IF NOT EXISTS postrider;

CREATE TABLE IF NOT EXISTS postrider.pauses (
    work_table    regclass    NOT NULL,
    stage         text        NOT NULL DEFAULT '',
    definition    text        NOT NULL DEFAULT '',
    endpoint      text        NOT NULL DEFAULT '',
    paused_at     timestamptz NOT NULL DEFAULT now(),
    who           text        NOT NULL,
    database_user text        NOT NULL DEFAULT session_user,
    why           text        NOT NULL,
    evidence      text,
    CONSTRAINT pauses_pkey PRIMARY KEY (work_table, stage, definition, endpoint),
    CONSTRAINT pauses_name_one_part CHECK ((stage = '') <> (endpoint = '') AND (definition = '' OR stage <> ''))
);

COMMENT ON TABLE postrider.pauses IS
    'The stages and endpoints for which nothing is claimed until a person resumes them.';
COMMENT ON COLUMN postrider.pauses.work_table IS
    'The work table whose rows wait.';
COMMENT ON COLUMN postrider.pauses.stage IS
    'The stage that is paused; empty where it is an endpoint.';
COMMENT ON COLUMN postrider.pauses.definition IS
    'The workflow definition that the stage is paused in, as name@version; empty for all of them.';
COMMENT ON COLUMN postrider.pauses.endpoint IS
    'The endpoint that is paused, as scheme://host:port; empty where it is a stage.';
COMMENT ON COLUMN postrider.pauses.paused_at IS
    'Since when.';
COMMENT ON COLUMN postrider.pauses.who IS
    'Who ordered it, as they said, or as the machine knows them.';
COMMENT ON COLUMN postrider.pauses.database_user IS
    'The role that it was written under.';
COMMENT ON COLUMN postrider.pauses.why IS
    'Why, as they said.';
COMMENT ON COLUMN postrider.pauses.evidence IS
    'What it rests on: a ticket, an announcement.';
