-- @case T-02 infinity, years BC and years beyond 9999 are dates like others
CREATE TABLE d (id int PRIMARY KEY, a date, b timestamp, c timestamptz);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO d VALUES (1, 'infinity', 'infinity', 'infinity'), (2, '-infinity', '-infinity', '-infinity');
INSERT INTO d VALUES (3, '0044-03-15 BC', '0001-12-31 23:40:28 BC', '0044-03-15 12:00 UTC BC');
INSERT INTO d VALUES (4, '5874897-12-31', '294276-12-31 23:59:59.999999', '15000-12-31 23:40:28 UTC');
