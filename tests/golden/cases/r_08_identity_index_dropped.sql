-- @case R-08 once the identity's index is dropped the source refuses updates, until there is another identity
CREATE TABLE r (id int NOT NULL, v text);
CREATE UNIQUE INDEX r_id ON r (id);
ALTER TABLE r REPLICA IDENTITY USING INDEX r_id;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, 'a');
UPDATE r SET v = 'b';
DROP INDEX r_id;
-- @fails 55000
UPDATE r SET v = 'c';
INSERT INTO r VALUES (2, 'x');
ALTER TABLE r REPLICA IDENTITY FULL;
UPDATE r SET v = 'd' WHERE id = 1;
