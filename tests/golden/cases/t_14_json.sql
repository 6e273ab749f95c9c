-- @case T-14 json keeps its text; the value null of jsonb is not NULL
CREATE TABLE j (id int PRIMARY KEY, a json, b jsonb);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO j VALUES (1, '{"a":1,  "a":1e400}', '{"a":9007199254740993,"b":1,"a":1.0}'), (2, 'null', 'null'), (3, NULL, NULL);
INSERT INTO j VALUES (4, '"\u0000"', '"ä"'), (5, '[1, 2]', '[9007199254740993, 1234567890123456789012345.678]');
