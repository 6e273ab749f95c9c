-- @case R-07 without a replica identity inserts arrive, and the source refuses updates and deletes
CREATE TABLE r (id int);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1), (1);
-- @fails 55000
UPDATE r SET id = 2;
-- @fails 55000
DELETE FROM r;
ALTER TABLE r REPLICA IDENTITY FULL;
UPDATE r SET id = 3 WHERE ctid = '(0,1)';
DELETE FROM r WHERE id = 1;
