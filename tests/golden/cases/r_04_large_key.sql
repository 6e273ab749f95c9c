-- @case R-04 a key stored out of line comes with every update, changed or not
CREATE TABLE r (big text, id int, n int, PRIMARY KEY (big, id));
ALTER TABLE r ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO r VALUES (repeat('k', 2500), 1, 1);
UPDATE r SET n = 2;
UPDATE r SET id = 2;
DELETE FROM r;
