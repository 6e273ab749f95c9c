-- @case P-11 a transactional message is part of its transaction; any other is there at once, and after a rollback, too
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
BEGIN;
SELECT pg_logical_emit_message(true, 'outbox', 'gone');
INSERT INTO t VALUES (1);
SELECT pg_logical_emit_message(false, 'outbox', 'stays');
ROLLBACK;
BEGIN;
SELECT pg_logical_emit_message(true, 'outbox', 'kept');
INSERT INTO t VALUES (2);
SELECT pg_logical_emit_message(false, 'outbox', 'before its transaction');
COMMIT;
SELECT pg_logical_emit_message(true, 'outbox', 'alone');
