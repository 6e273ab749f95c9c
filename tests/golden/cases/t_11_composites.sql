-- @case T-11 nulls within a composite are empty fields
CREATE TYPE item AS (a text, b int, c bool);
CREATE TABLE c (id int PRIMARY KEY, one item, many item[], span int4range, spans datemultirange);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO c VALUES (1, ('a, "b"', 7, true), ARRAY[('x', 1, false), (NULL, NULL, NULL)]::item[], '[1,5]', '{}');
INSERT INTO c VALUES (2, (NULL, NULL, NULL), '{}', 'empty', '{[2024-01-01,2024-02-01),(2025-01-01,)}');
