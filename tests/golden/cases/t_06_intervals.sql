-- @case T-06 months, days and time of an interval stay apart
CREATE TABLE i (id int PRIMARY KEY, a interval);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO i VALUES (1, '1 year 2 mons -3 days 04:05:06.789'), (2, '1 mon -1 day'), (3, 'P178Y'), (4, '0');
