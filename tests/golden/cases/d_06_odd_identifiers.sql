-- @case D-06 names arrive raw: spaces, dots, quotes, capitals, any script
CREATE SCHEMA "My Sch.ema";
CREATE TABLE "My Sch.ema"."Ta""b.le é" ("Id ""x""" int PRIMARY KEY, "select" text, "ä_名前" text, id int, "Id" int);
CREATE TYPE "My Sch.ema"."Ty pe" AS ENUM ('a b');
CREATE TABLE "Other" (t "My Sch.ema"."Ty pe" PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO "My Sch.ema"."Ta""b.le é" VALUES (1, 'it''s', '名前', 2, 3);
UPDATE "My Sch.ema"."Ta""b.le é" SET "Id ""x""" = 9;
INSERT INTO "Other" VALUES ('a b');
