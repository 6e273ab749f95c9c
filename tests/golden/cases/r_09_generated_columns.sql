-- @case R-09 a stored generated column is neither described nor sent
-- @unlike test_decoding it shows generated columns
CREATE TABLE g (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO g VALUES (1, 10);
--= table public.g: INSERT: id[integer]:1 a[integer]:10
UPDATE g SET a = 11;
--= table public.g: UPDATE: id[integer]:1 a[integer]:11
