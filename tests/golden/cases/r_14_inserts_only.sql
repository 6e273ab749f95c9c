-- @case R-14 of a publication of inserts alone, updates, deletes and truncates vanish; transactional messages arrive
-- @unlike test_decoding it knows no publications
-- @unlike tables the updates are not published
CREATE TABLE r (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert');
-- @script
INSERT INTO r VALUES (1, 'a');
--= table public.r: INSERT: id[integer]:1 v[text]:'a'
UPDATE r SET v = 'b';
DELETE FROM r;
TRUNCATE r;
SELECT pg_logical_emit_message(true, 'outbox', 'hello');
--= message: transactional: 1 prefix: outbox, sz: 5 content:hello
