-- @case T-04 24:00 is not 00:00
CREATE TABLE t (id int PRIMARY KEY, a time, b timetz);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO t VALUES (1, '24:00', '24:00+00'), (2, '23:59:60', '04:05:06.789-15:59:59'), (3, '00:00', '00:00+05:30');
