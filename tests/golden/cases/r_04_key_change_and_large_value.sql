-- @case R-04 a change of the key is one update with the old key, and the large value stays
CREATE TABLE r (id int PRIMARY KEY, big text, n int);
ALTER TABLE r ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, repeat('x', 2500), 1), (2, 'small', 2);
UPDATE r SET id = 5 WHERE id = 1;
DELETE FROM r WHERE id = 5;
