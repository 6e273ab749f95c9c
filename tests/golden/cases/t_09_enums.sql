-- @case T-09 an enum's label is that of the moment; an enum as key
-- @unlike tables a label that is renamed in the catalogue is not sent again
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE e (m mood PRIMARY KEY, a mood[]);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO e VALUES ('sad', '{ok}');
ALTER TYPE mood ADD VALUE 'happy' BEFORE 'ok';
INSERT INTO e VALUES ('happy', '{happy,NULL}');
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue';
DELETE FROM e WHERE m = 'blue';
INSERT INTO e VALUES ('blue', '{}');
