-- @case R-12 an update that moves a row over a filter's edge is an insert or a delete
-- @versions 15-18 14 has no row filters
-- @unlike test_decoding it knows no row filters
CREATE TABLE f (id int PRIMARY KEY, s text);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE f WHERE (s = 'PENDING');
-- @script
INSERT INTO f VALUES (1, 'PENDING');
--= table public.f: INSERT: id[integer]:1 s[text]:'PENDING'
INSERT INTO f VALUES (2, 'DONE');
UPDATE f SET s = 'DONE' WHERE id = 1;
--= table public.f: DELETE: id[integer]:1 s[text]:'PENDING'
UPDATE f SET s = 'PENDING' WHERE id = 2;
--= table public.f: INSERT: id[integer]:2 s[text]:'PENDING'
UPDATE f SET id = 3 WHERE id = 2;
--= table public.f: UPDATE: old-key: id[integer]:2 s[text]:'PENDING' new-tuple: id[integer]:3 s[text]:'PENDING'
DELETE FROM f WHERE id = 1;
DELETE FROM f WHERE id = 3;
--= table public.f: DELETE: id[integer]:3 s[text]:'PENDING'
