-- @case P-06 a streamed transaction that rolls back leaves nothing
-- @unpublished public.ballast
-- @options proto_version=2 streaming=on
-- @reader SET logical_decoding_work_mem = '64kB'
-- @alone the server stops sending what has rolled back where it looks into a catalog, and it looks again when others change theirs
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE ballast (v text);
ALTER TABLE ballast ALTER v SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR TABLE t;
-- @script
BEGIN;
INSERT INTO t VALUES (1, 'a');
INSERT INTO ballast VALUES (repeat('b', 70000));
INSERT INTO t VALUES (2, 'b');
ROLLBACK;
INSERT INTO t VALUES (3, 'c');
