-- @case T-16 padding is sent, and empty text is not NULL
CREATE TABLE c (id int PRIMARY KEY, a char(5), b varchar(5), c text);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO c VALUES (1, 'ab', '', ''), (2, '', NULL, NULL), (3, NULL, 'ä ', E'\t\\');
