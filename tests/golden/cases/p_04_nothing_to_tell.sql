-- @case P-04 what rolled back, DDL alone and other tables leave nothing but the position (14 sends BEGIN and COMMIT for the latter two)
-- @unpublished public.other
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE t;
-- @script
BEGIN;
INSERT INTO t VALUES (1);
ROLLBACK;
CREATE TABLE more (id int);
INSERT INTO other VALUES (1);
VACUUM t;
INSERT INTO t VALUES (2);
