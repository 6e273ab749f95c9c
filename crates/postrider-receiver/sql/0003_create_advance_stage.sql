-- The last statement of a same_tx stage's work: the receiver moves the work row on, in its own business transaction.
--
-- `postrider setup` makes such a function for the work table that is configured, whatever its names are: postrider_advance_ and the
-- table's name, in the table's schema. This one is for the canonical table in the schema public. A receiver's role needs EXECUTE on it, and
-- no privilege on the table:
--   GRANT EXECUTE ON FUNCTION public.postrider_advance_pending_work(text[], text, bigint, text) TO quoting_service;
--
-- It writes the history, too. With history = { enabled = false }, setup makes it without that part.
--
-- key has the texts of the key columns as the request's body has them, stage and fence are the request's Postrider-Stage and
-- Postrider-Fence, and next_stage is where the row goes: another stage, or DONE, which ends the workflow.
--
-- A request whose fence is not the row's any more raises PRF01, and never returns false: the raise is what undoes the business writes. Who
-- catches it at a savepoint and commits has done the work of a request that somebody else was given, too.
--
-- The row is moved on from these states, and from no other:
--   RUNNING           the attempt is under way;
--   RETRY, UNKNOWN    it was given up without a final answer. Whoever takes the row next raises the fence, and both lock the row: either
--                     this transaction is first, and nobody asks again, or it is stale.
-- PENDING has no request under its fence, NON_RESUMABLE had its final answer and waits for a person, and a closed row is closed.

CREATE OR REPLACE FUNCTION public.postrider_advance_pending_work(key text[], stage text, fence bigint, next_stage text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET extra_float_digits = 3 SET bytea_output = 'hex'
AS $advance$
#variable_conflict use_variable
DECLARE
    part_1 public.pending_work.group_id%TYPE := key[1];
    part_2 public.pending_work.quote_id%TYPE := key[2];
    ends boolean := next_stage = 'DONE';
    entered public.pending_work.stage%TYPE := CASE WHEN next_stage = 'DONE' THEN stage ELSE next_stage END;
    becomes public.pending_work.stage_state%TYPE := CASE WHEN next_stage = 'DONE' THEN 'DONE' ELSE 'PENDING' END;
    held record;
BEGIN
    IF cardinality(key) IS DISTINCT FROM 2 OR array_position(key, NULL) IS NOT NULL OR num_nulls(stage, fence, next_stage) > 0 THEN
        RAISE EXCEPTION 'an argument is missing' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give the 2 part(s) of the key, the stage and the fence as the request has them, and the next stage, or DONE.';
    ELSIF next_stage = stage THEN
        RAISE EXCEPTION 'the next stage is the one that the row is in' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Name another stage, or DONE to end the workflow.';
    END IF;
    SELECT t.stage::text AS stage, t.stage_state::text AS state, t.fence AS fence, NOT (t.closed_at IS NULL) AS closed,
        t.attempt_count::int4 AS attempts, t.deferral_count::int4 AS deferrals, t.epoch::int4 AS epoch, t.lease_owner AS owner,
        t.definition::text AS definition, t.updated_at AS written_at, ARRAY[t.group_id::text, t.quote_id::text] AS key
    INTO held
    FROM public.pending_work AS t WHERE t.group_id = part_1 AND t.quote_id = part_2 FOR NO KEY UPDATE;
    IF (NOT FOUND OR held.closed OR held.stage <> stage OR held.fence <> fence OR held.state NOT IN ('RUNNING', 'RETRY', 'UNKNOWN')) IS NOT FALSE THEN
        RAISE EXCEPTION 'the request is stale: its work row has moved on' USING ERRCODE = 'PRF01',
            DETAIL = CASE WHEN held.fence IS NULL THEN 'There is no such row.'
                ELSE format('The request is for stage %s at fence %s, and the row is in stage %s, %s, at fence %s.',
                    stage, fence, held.stage, held.state, held.fence) END,
            HINT = 'Roll the transaction back, business writes and all, and answer 412 with Postrider-Outcome: stale.';
    END IF;
    UPDATE public.pending_work AS t SET
        stage = entered, stage_state = becomes, fence = t.fence + 1,
        attempt_count = CASE WHEN ends THEN t.attempt_count ELSE 0 END, deferral_count = CASE WHEN ends THEN t.deferral_count ELSE 0 END,
        next_attempt_at = NULL, lease_until = NULL, lease_owner = NULL, request_hash = CASE WHEN ends THEN t.request_hash END,
        closed_at = CASE WHEN ends THEN now() END, last_error = NULL, updated_at = now()
    WHERE t.group_id = part_1 AND t.quote_id = part_2;
    IF to_regclass('postrider.work_history') IS NOT NULL THEN
        INSERT INTO postrider.work_history (started_at, fence, work_table, epoch, attempt, deferrals, key, stage, definition, owner,
            outcome, reason, next_stage, next_state)
        VALUES (CASE WHEN held.state = 'RUNNING' THEN held.written_at END, held.fence, 'public.pending_work'::regclass, held.epoch,
            held.attempts, held.deferrals, held.key, held.stage, held.definition, held.owner, 'done_by_receiver',
            CASE WHEN held.state <> 'RUNNING' THEN 'LATE: the attempt was ' || held.state END, entered::text, becomes::text);
    END IF;
END
$advance$;
REVOKE ALL ON FUNCTION public.postrider_advance_pending_work(text[], text, bigint, text) FROM PUBLIC;
