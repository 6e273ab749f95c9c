-- @case R-06 under REPLICA IDENTITY FULL every column is marked as key
CREATE TABLE r (id int PRIMARY KEY, v text, w text);
ALTER TABLE r REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, 'a', NULL), (2, 'b', 'x');
UPDATE r SET v = 'c' WHERE id = 1;
UPDATE r SET id = 3 WHERE id = 2;
DELETE FROM r WHERE id = 3;
