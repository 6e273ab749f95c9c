-- @case R-09 a stored generated column is sent where the publication says so
-- @versions 18-18 14 to 17 cannot publish generated columns
-- @unlike test_decoding it shows virtual generated columns as NULL
CREATE TABLE g (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED, v int GENERATED ALWAYS AS (a * 3) VIRTUAL);
CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored);
-- @script
INSERT INTO g VALUES (1, 10);
--= table public.g: INSERT: id[integer]:1 a[integer]:10 b[integer]:20
UPDATE g SET a = 11;
--= table public.g: UPDATE: id[integer]:1 a[integer]:11 b[integer]:22
