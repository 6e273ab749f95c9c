-- The work table: one row per workflow, and the row is the truth.
--
-- The storage is part of the design. Every transition but the last is meant to be a HOT update: more than half of each
-- page is left free, because a burst updates every row of a page at once, a claimed row is wider than a submitted one,
-- and no index mentions state, stage or time. PostgreSQL counts the columns of an index predicate as indexed, too. So the
-- only index beside the primary key is predicated on closed_at, which the last transition alone writes. Columns of
-- eight bytes come first, then those of four, then the others, so that fewer bytes of a version are gaps between them:
-- each update writes the whole version to the log.

CREATE TABLE IF NOT EXISTS pending_work (
    fence           bigint      NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    next_attempt_at timestamptz,
    lease_until     timestamptz,
    closed_at       timestamptz,
    attempt_count   int         NOT NULL DEFAULT 0,
    deferral_count  int         NOT NULL DEFAULT 0,
    epoch           int         NOT NULL DEFAULT 0,
    group_id        text        NOT NULL,
    quote_id        text        NOT NULL,
    stage           text        NOT NULL,
    stage_state     text        NOT NULL DEFAULT 'PENDING',
    lease_owner     text,
    request_hash    bytea,
    last_error      text,
    definition      text,
    payload         jsonb,
    CONSTRAINT pending_work_pkey PRIMARY KEY (group_id, quote_id),
    CONSTRAINT pending_work_stage_state_check CHECK (stage_state IN (
        'PENDING', 'RUNNING', 'RETRY', 'WAITING', 'UNKNOWN', 'COMPENSATING', 'NON_RESUMABLE',
        'DONE', 'CANCELLED', 'COMPENSATED', 'COMPENSATION_STUCK'))
) WITH (fillfactor = 45);

CREATE INDEX IF NOT EXISTS pending_work_open_idx ON pending_work (group_id, quote_id) WHERE closed_at IS NULL;

COMMENT ON TABLE pending_work IS
    'One row per workflow: where it is, who may write it, when it is due.';
COMMENT ON COLUMN pending_work.group_id IS
    'First part of the row''s key: the group that the quote belongs to.';
COMMENT ON COLUMN pending_work.quote_id IS
    'Second part of the row''s key: the quote.';
COMMENT ON COLUMN pending_work.stage IS
    'Where the workflow is: the name of a configured stage.';
COMMENT ON COLUMN pending_work.stage_state IS
    'How far this stage is; a row waits to be claimed in PENDING and RETRY, and is somebody''s in RUNNING.';
COMMENT ON COLUMN pending_work.attempt_count IS
    'The budget: how often this stage was tried. A resume may reset it, so it guards nothing.';
COMMENT ON COLUMN pending_work.deferral_count IS
    'How often this stage was put off without using an attempt; it has a budget of its own.';
COMMENT ON COLUMN pending_work.fence IS
    'The token that decides who may write: only ever rises, over attempts, stages, take-overs and resumes.';
COMMENT ON COLUMN pending_work.epoch IS
    'Rises only when an operator explicitly executes a stage again; part of the idempotency key.';
COMMENT ON COLUMN pending_work.next_attempt_at IS
    'The row is not due before this time of the database''s clock; null is due at once.';
COMMENT ON COLUMN pending_work.lease_until IS
    'After this time of the database''s clock a RUNNING row may be taken over. It decides when to try, never who may write.';
COMMENT ON COLUMN pending_work.lease_owner IS
    'Who claimed the row: random per process start, never a host name.';
COMMENT ON COLUMN pending_work.request_hash IS
    'sha256(convert_to(payload::text, ''UTF8'')) at the first attempt of this stage and epoch, computed inside the claim.';
COMMENT ON COLUMN pending_work.closed_at IS
    'Null while the row is open; set by the last transition only.';
COMMENT ON COLUMN pending_work.last_error IS
    'Why the last attempt did not end well, or why the row is parked.';
COMMENT ON COLUMN pending_work.definition IS
    'The workflow definition that the row was started under, as name@version.';
COMMENT ON COLUMN pending_work.payload IS
    'The input that every stage is sent; it must not change while a stage is being tried.';
COMMENT ON COLUMN pending_work.created_at IS
    'When the row was submitted.';
COMMENT ON COLUMN pending_work.updated_at IS
    'When the row was last written.';
