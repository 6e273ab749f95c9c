-- @case T-17 bytes are hexadecimal, and none are not NULL
CREATE TABLE b (id int PRIMARY KEY, a bytea);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO b VALUES (1, '\x00ff5c'), (2, '\x'), (3, NULL);
