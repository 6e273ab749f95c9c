-- @case T-01 NaN and the infinities are values, digits and scale are kept
CREATE TABLE n (id int PRIMARY KEY, a numeric, b numeric(20,4), c float8, d float4);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO n VALUES (1, 'NaN', 'NaN', 'NaN', 'NaN'), (2, 'Infinity', NULL, '-Infinity', 'Infinity');
INSERT INTO n VALUES (3, 1e20, 12345.6789, 0.1, 0.1), (4, 123456789012345678901234567890.123456789, 0, -0.0, 1e-45);
INSERT INTO n VALUES (5, 1.10, 1, 1e300, 3.4e38), (6, '-Infinity', NULL, '-0', 9007199254740993);
