-- @case P-10 with two-phase decoding the rows come when they are prepared, and the verdict later
-- @versions 15-18 14 has no protocol 3
-- @options proto_version=3 two_phase=on
-- @alone the server stops sending what has rolled back where it looks into a catalog, and it looks again when others change theirs
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
BEGIN;
INSERT INTO t VALUES (1, 'prepared');
PREPARE TRANSACTION 'p-10';
INSERT INTO t VALUES (2, 'between');
COMMIT PREPARED 'p-10';
BEGIN;
INSERT INTO t VALUES (3, 'never');
PREPARE TRANSACTION 'p-10 never';
ROLLBACK PREPARED 'p-10 never';
