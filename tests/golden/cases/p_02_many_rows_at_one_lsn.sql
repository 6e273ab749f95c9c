-- @case P-02 rows of one statement can share an LSN
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
COPY t FROM PROGRAM 'printf "1\n2\n3\n"';
INSERT INTO t VALUES (4), (5);
