-- @case P-05 streamed with protocol 4: aborts say where and when
-- @versions 16-18 14 and 15 have no protocol 4
-- @unpublished public.ballast
-- @options proto_version=4 streaming=parallel
-- @reader SET logical_decoding_work_mem = '64kB'
-- @alone the server stops sending what has rolled back where it looks into a catalog, and it looks again when others change theirs
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE ballast (v text);
ALTER TABLE ballast ALTER v SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR TABLE t;
-- @script
BEGIN;
INSERT INTO t VALUES (1, 'a'), (2, 'b');
INSERT INTO ballast VALUES (repeat('b', 70000));
SAVEPOINT a;
INSERT INTO t VALUES (3, 'c');
INSERT INTO ballast VALUES (repeat('b', 70000));
INSERT INTO t VALUES (4, 'd');
ROLLBACK TO SAVEPOINT a;
SAVEPOINT b;
UPDATE t SET v = 'bb' WHERE id = 2;
SELECT pg_logical_emit_message(true, 'outbox', 'in between');
INSERT INTO ballast VALUES (repeat('b', 70000));
RELEASE SAVEPOINT b;
DELETE FROM t WHERE id = 1;
COMMIT;
