-- @case P-09 without two-phase decoding a prepared transaction comes when it commits
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
BEGIN;
INSERT INTO t VALUES (1, 'prepared');
PREPARE TRANSACTION 'p-09';
INSERT INTO t VALUES (2, 'between');
COMMIT PREPARED 'p-09';
BEGIN;
INSERT INTO t VALUES (3, 'never');
PREPARE TRANSACTION 'p-09 never';
ROLLBACK PREPARED 'p-09 never';
