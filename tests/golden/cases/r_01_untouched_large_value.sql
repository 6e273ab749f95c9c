-- @case R-01 a large value that an update did not touch is marked, neither NULL nor empty
CREATE TABLE r (id int PRIMARY KEY, big text, n int);
ALTER TABLE r ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (1, repeat('x', 2500), 1);
UPDATE r SET n = 2;
UPDATE r SET big = 'small';
