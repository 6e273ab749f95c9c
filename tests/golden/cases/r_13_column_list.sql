-- @case R-13 a column list describes and sends its columns only
-- @versions 15-18 14 has no column lists
-- @unlike test_decoding it knows no column lists
CREATE TABLE l (a text, id int PRIMARY KEY, b text, c text);
CREATE PUBLICATION p FOR TABLE l (id, c);
-- @script
INSERT INTO l VALUES ('a', 1, 'b', 'c');
--= table public.l: INSERT: id[integer]:1 c[text]:'c'
UPDATE l SET b = 'bb';
--= table public.l: UPDATE: id[integer]:1 c[text]:'c'
UPDATE l SET id = 2;
--= table public.l: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 c[text]:'c'
ALTER TABLE l ADD COLUMN d int;
INSERT INTO l VALUES (NULL, 3, 'b', NULL, 4);
--= table public.l: INSERT: id[integer]:3 c[text]:null
DELETE FROM l WHERE id = 2;
--= table public.l: DELETE: id[integer]:2
