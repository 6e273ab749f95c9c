-- @case D-04 tables of one name in two schemas are two tables
CREATE SCHEMA s2;
CREATE TABLE n1 (id int PRIMARY KEY, a text, b text, c text, d text);
CREATE TABLE s2.n1 (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO n1 VALUES (1, 'a', 'b', 'c', 'd');
INSERT INTO s2.n1 VALUES (2);
BEGIN;
INSERT INTO s2.n1 VALUES (3);
INSERT INTO n1 VALUES (4);
COMMIT;
