-- @case T-06 an interval can be infinite
-- @versions 17-18 14 to 16 have no infinite intervals
CREATE TABLE i (id int PRIMARY KEY, a interval);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO i VALUES (1, 'infinity'), (2, '-infinity');
