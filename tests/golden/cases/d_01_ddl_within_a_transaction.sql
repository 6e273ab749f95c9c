-- @case D-01 each row has the columns of its moment
-- @unlike tables the log does not tell which new column an old one became
CREATE TABLE d (id int PRIMARY KEY, a text);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
BEGIN;
INSERT INTO d VALUES (1, 'a');
ALTER TABLE d ADD COLUMN b int;
INSERT INTO d VALUES (2, 'a', 2);
ALTER TABLE d DROP COLUMN a;
INSERT INTO d VALUES (3, 3);
ALTER TABLE d RENAME COLUMN b TO c;
INSERT INTO d VALUES (4, 4);
ALTER TABLE d ALTER COLUMN c TYPE text;
INSERT INTO d VALUES (5, 'five');
COMMIT;
