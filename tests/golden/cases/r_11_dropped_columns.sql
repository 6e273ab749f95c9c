-- @case R-11 dropped columns leave no trace
CREATE TABLE r (id int PRIMARY KEY, a text, b text, c int);
ALTER TABLE r DROP COLUMN a;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, 'b', 3);
ALTER TABLE r DROP COLUMN b;
INSERT INTO r VALUES (2, 4);
UPDATE r SET c = 5 WHERE id = 1;
