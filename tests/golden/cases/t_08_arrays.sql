-- @case T-08 NULL and the word "NULL", quotes, nesting and bounds of arrays
CREATE TABLE a (id int PRIMARY KEY, i int[], t text[], n numeric[]);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO a VALUES (1, '{1,NULL,3}', '{"NULL",NULL,NULL,"","a b","a\"b","a\\\\b","x,y","{q}"}', '{NaN,1.50}');
INSERT INTO a VALUES (2, '{{1,2},{3,4}}', '[2:3][0:1]={{a,b},{c,d}}', NULL), (3, '[0:1]={7,8}', '{}', '[-5:-5]={1}');
