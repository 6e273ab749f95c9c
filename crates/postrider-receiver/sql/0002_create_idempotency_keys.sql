-- The idempotency-key store: which requests were executed, and what each was answered.
--
-- For a stage that touches only this database, one transaction does all of it: begin_request(), the business writes,
-- store_answer(), commit. So the key, the effect and the answer exist together or not at all.

CREATE TABLE IF NOT EXISTS postrider_receiver.idempotency_keys (
    scope        text        NOT NULL,
    key          text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    state        text        NOT NULL DEFAULT 'STARTED',
    status       int,
    headers      bytea,
    body         bytea,
    fence        bigint,
    locked_until timestamptz,
    keep_until   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    answered_at  timestamptz,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_keys_key_check CHECK (length(key) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_keys_fingerprint_check CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_keys_state_check CHECK (state IN ('STARTED', 'ANSWERED')),
    CONSTRAINT idempotency_keys_answer_check CHECK (
        (state = 'ANSWERED') = (num_nonnulls(status, headers, body, answered_at) = 4))
) WITH (fillfactor = 50);

COMMENT ON TABLE postrider_receiver.idempotency_keys IS
    'One row per executed request, committed together with the request''s effect.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.scope IS
    'Tenant, method and route, as request_scope() writes them: the same key of another tenant is another key.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.key IS
    'The content of the header Idempotency-Key, opaque here, at most 255 characters.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.fingerprint IS
    'SHA-256 of the request, as request_fingerprint() computes it: a key used again with another one is refused.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.state IS
    'STARTED until an answer is stored. A committed row in this state is answered as in progress, never executed again.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.status IS
    'The stored answer''s HTTP status.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.headers IS
    'The stored answer''s header lines as on the wire: name, colon, space, value, carriage return, line feed.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.body IS
    'The stored answer''s body, byte for byte.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.fence IS
    'The fence that the executed request carried; null if it carried none.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.locked_until IS
    'Null in a stage of one transaction; for stages in several, until when the key is somebody''s.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.keep_until IS
    'Until when the row must not be purged; null is until the workflow is known to be terminal.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.created_at IS
    'When the transaction that executed the request began.';
COMMENT ON COLUMN postrider_receiver.idempotency_keys.answered_at IS
    'When the answer was stored.';

-- Writes a scope: method, route and tenant, parted by a blank. Blanks and per cent signs in the first two are escaped,
-- so that no two triples give one text.
CREATE OR REPLACE FUNCTION postrider_receiver.request_scope(tenant text, method text, route text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT replace(replace(method, '%', '%25'), ' ', '%20') || ' '
        || replace(replace(route, '%', '%25'), ' ', '%20') || ' ' || tenant
$$;

-- Computes a request's fingerprint: SHA-256 over method, path, query and body, each behind its length as eight bytes,
-- most significant first. A request without a query has an empty one.
CREATE OR REPLACE FUNCTION postrider_receiver.request_fingerprint(method text, path text, query text, body bytea)
RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT sha256(
        int8send(octet_length(convert_to(method, 'UTF8'))) || convert_to(method, 'UTF8')
        || int8send(octet_length(convert_to(path, 'UTF8'))) || convert_to(path, 'UTF8')
        || int8send(octet_length(convert_to(query, 'UTF8'))) || convert_to(query, 'UTF8')
        || int8send(octet_length(body)) || body)
$$;

-- Takes the key for the caller's transaction and says what to do, in the column verdict:
--   fresh        the key is this transaction's: do the work, call store_answer(), commit;
--   replay       it was executed: send the stored answer with Idempotency-Replayed: true;
--   key-reused   it was executed for another request: answer 422 and change nothing;
--   in-progress  it was committed without an answer: answer 409 and change nothing.
-- A concurrent duplicate waits on the index entry until the first one's transaction ends, then replays, or executes if
-- that one rolled back. After lock_timeout_ms it raises 55P03: roll back and answer 409 in-progress. Under REPEATABLE
-- READ it raises 40001 when the first one commits: run the transaction again.
CREATE OR REPLACE FUNCTION postrider_receiver.begin_request(
    request_scope text, request_key text, request_fingerprint bytea, request_fence bigint, lock_timeout_ms int,
    OUT verdict text, OUT answer_status int, OUT answer_headers bytea, OUT answer_body bytea)
LANGUAGE plpgsql
AS $$
DECLARE
    lock_timeout_before text := current_setting('lock_timeout');
    stored postrider_receiver.idempotency_keys;
BEGIN
    PERFORM set_config('lock_timeout', greatest(lock_timeout_ms, 1)::text, true);
    -- The loop turns again only if the row that was in the way is purged between the two statements.
    LOOP
        INSERT INTO postrider_receiver.idempotency_keys (scope, key, fingerprint, fence)
        VALUES (request_scope, request_key, request_fingerprint, request_fence)
        ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO NOTHING;
        IF FOUND THEN
            verdict := 'fresh';
            EXIT;
        END IF;
        SELECT * INTO stored FROM postrider_receiver.idempotency_keys AS k
        WHERE k.scope = request_scope AND k.key = request_key;
        EXIT WHEN FOUND;
    END LOOP;
    PERFORM set_config('lock_timeout', lock_timeout_before, true);
    IF verdict = 'fresh' THEN
        RETURN;
    ELSIF stored.fingerprint <> request_fingerprint THEN
        verdict := 'key-reused';
    ELSIF stored.state <> 'ANSWERED' THEN
        verdict := 'in-progress';
    ELSE
        verdict := 'replay';
        answer_status := stored.status;
        answer_headers := stored.headers;
        answer_body := stored.body;
    END IF;
END
$$;

-- Stores the answer of a request that begin_request() called fresh in this transaction. Raises 22023 for a status that
-- must not be stored, because a later try may end otherwise: only 2xx and 4xx are final, and of the latter not 408, 409,
-- 425 and 429. Raises 55000 if the key was not begun or already has its answer.
CREATE OR REPLACE FUNCTION postrider_receiver.store_answer(
    request_scope text, request_key text, answer_status int, answer_headers bytea, answer_body bytea)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF answer_status NOT BETWEEN 200 AND 299
        AND (answer_status NOT BETWEEN 400 AND 499 OR answer_status IN (408, 409, 425, 429)) THEN
        RAISE EXCEPTION 'an answer of this status is not final and must not be stored'
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Roll the transaction back and send the answer without storing it.';
    END IF;
    UPDATE postrider_receiver.idempotency_keys AS k
    SET state = 'ANSWERED', status = answer_status, headers = answer_headers, body = answer_body,
        answered_at = clock_timestamp()
    WHERE k.scope = request_scope AND k.key = request_key AND k.state = 'STARTED';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no request is begun under this key'
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Call begin_request() first, in the same transaction, and store one answer.';
    END IF;
END
$$;
