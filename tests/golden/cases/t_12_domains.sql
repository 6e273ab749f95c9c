-- @case T-12 a domain comes as the type below it
-- @unlike test_decoding it names the domain
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN high_price AS price CHECK (VALUE > 1);
CREATE DOMAIN code AS text;
CREATE TABLE d (id int PRIMARY KEY, a high_price, b code);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO d VALUES (1, 1.5, 'it''s');
--= table public.d: INSERT: id[integer]:1 a[numeric]:'1.50' b[text]:'it''s'
