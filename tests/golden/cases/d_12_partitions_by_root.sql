-- @case D-12 via the root, changes carry the root's name; the truncation of a leaf is not sent
-- @unlike test_decoding it always names the leaf
-- @unlike tables what is attached filled, and what a leaf's truncation removed, is not told
CREATE TABLE m (id int, r text, PRIMARY KEY (id, r)) PARTITION BY LIST (r);
CREATE TABLE m_a PARTITION OF m FOR VALUES IN ('a');
CREATE TABLE m_b (r text NOT NULL, id int NOT NULL);
ALTER TABLE m ATTACH PARTITION m_b FOR VALUES IN ('b');
CREATE TABLE filled (id int NOT NULL, r text NOT NULL CHECK (r = 'c'));
INSERT INTO filled VALUES (7, 'c');
CREATE PUBLICATION p FOR TABLE m WITH (publish_via_partition_root);
-- @script
INSERT INTO m VALUES (1, 'a'), (2, 'b');
--= table public.m: INSERT: id[integer]:1 r[text]:'a'
--= table public.m: INSERT: id[integer]:2 r[text]:'b'
UPDATE m SET r = 'b' WHERE id = 1;
--= table public.m: DELETE: id[integer]:1 r[text]:'a'
--= table public.m: INSERT: id[integer]:1 r[text]:'b'
ALTER TABLE m ATTACH PARTITION filled FOR VALUES IN ('c');
INSERT INTO m VALUES (8, 'c');
--= table public.m: INSERT: id[integer]:8 r[text]:'c'
TRUNCATE m_b;
INSERT INTO m VALUES (9, 'b');
--= table public.m: INSERT: id[integer]:9 r[text]:'b'
TRUNCATE m;
--= table public.m: TRUNCATE: (no-flags)
