-- @case R-06 the columns of an index identify the row
CREATE TABLE r (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text);
ALTER TABLE r REPLICA IDENTITY USING INDEX r_code_key;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, 'a', 'v'), (2, 'b', 'w');
UPDATE r SET v = 'c' WHERE id = 1;
UPDATE r SET id = 7 WHERE id = 1;
UPDATE r SET code = 'z' WHERE id = 7;
DELETE FROM r WHERE code = 'b';
