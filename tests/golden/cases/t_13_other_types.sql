-- @case T-13 every other built-in type, and the usual extensions
CREATE EXTENSION hstore SCHEMA public;
CREATE EXTENSION citext SCHEMA public;
CREATE EXTENSION ltree SCHEMA public;
CREATE EXTENSION cube SCHEMA public;
CREATE EXTENSION isn SCHEMA public;
CREATE EXTENSION intarray SCHEMA public;
CREATE TABLE o (id int PRIMARY KEY, h hstore, ct citext, lt ltree, x xml, ip inet, m8 macaddr8, ts tsvector, jp jsonpath, lsn pg_lsn, ch "char", na name, b3 bit(3), vb varbit, u uuid, o oid, p point, cu cube, isbn isbn13, qi query_int, ok bool);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO o VALUES (1, '""=>"", n=>NULL, "k 1"=>"v\"x"', 'MiXed', 'a.b', '<a>&lt;</a>', '::1/64', '08:00:2b:01:02:03:04:05', 'a:1 b:2', '$.a', '16/B374D848', 'x', 'n', '101', '', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 4294967295, '(1.5,-2)', '(1,2),(3,4)', '9780393040029', '1&(2|3)', true);
