-- @case D-12 changes of partitions carry the leaf's name; what was in a table before it was attached is not sent
-- @unlike tables what is attached filled or detached is not told
-- @unpublished public.m
CREATE TABLE m (id int, r text, PRIMARY KEY (id, r)) PARTITION BY LIST (r);
CREATE TABLE m_a PARTITION OF m FOR VALUES IN ('a');
CREATE TABLE m_b PARTITION OF m FOR VALUES IN ('b');
CREATE TABLE filled (id int NOT NULL, r text NOT NULL CHECK (r = 'c'));
INSERT INTO filled VALUES (7, 'c');
CREATE PUBLICATION p FOR TABLE m;
-- @script
INSERT INTO m VALUES (1, 'a'), (2, 'b');
UPDATE m SET r = 'b' WHERE id = 1;
ALTER TABLE m ATTACH PARTITION filled FOR VALUES IN ('c');
INSERT INTO m VALUES (8, 'c');
TRUNCATE m_a;
ALTER TABLE m DETACH PARTITION m_b;
TRUNCATE m;
