-- @case P-01 transactions come in the order of their commits
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
-- @session a
BEGIN;
INSERT INTO t VALUES (5001);
-- @session b
INSERT INTO t VALUES (5002);
-- @session a
INSERT INTO t VALUES (5003);
COMMIT;
