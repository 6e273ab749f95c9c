-- @case P-12 a transaction replayed from elsewhere says from where
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
SELECT pg_replication_origin_create('other');
-- @script
SELECT pg_replication_origin_session_setup('other');
BEGIN;
SELECT pg_replication_origin_xact_setup('0/ABC', '2024-01-01 00:00+00');
INSERT INTO t VALUES (1);
COMMIT;
SELECT pg_replication_origin_session_reset();
INSERT INTO t VALUES (2);
SELECT pg_replication_origin_drop('other');
