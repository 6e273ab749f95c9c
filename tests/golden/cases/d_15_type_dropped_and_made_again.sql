-- @case D-15 a type, an extension or a table that is made again has a new oid and is described again
CREATE TYPE mood AS ENUM ('sad');
CREATE EXTENSION citext SCHEMA public;
CREATE TABLE d (id int PRIMARY KEY, m mood, c citext);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO d VALUES (1, 'sad', 'A');
ALTER TABLE d DROP COLUMN m;
ALTER TABLE d DROP COLUMN c;
DROP TYPE mood;
DROP EXTENSION citext;
CREATE TYPE mood AS ENUM ('glad');
CREATE EXTENSION citext SCHEMA public;
ALTER TABLE d ADD COLUMN m mood;
ALTER TABLE d ADD COLUMN c citext;
INSERT INTO d VALUES (2, 'glad', 'B');
DROP TABLE d;
CREATE TABLE d (id int PRIMARY KEY, m mood);
INSERT INTO d VALUES (3, 'glad');
