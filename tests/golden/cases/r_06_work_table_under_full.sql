-- @case R-06 of a work table under FULL the key is what the mapping says, not what the log marks
CREATE TABLE pending_work (group_id text, quote_id text, stage text, stage_state text, attempt_count int, deferral_count int, fence bigint, epoch int, next_attempt_at timestamptz, lease_until timestamptz, lease_owner text, closed_at timestamptz, payload text, PRIMARY KEY (group_id, quote_id));
ALTER TABLE pending_work ALTER payload SET STORAGE EXTERNAL;
ALTER TABLE pending_work ALTER stage SET STORAGE EXTERNAL;
ALTER TABLE pending_work REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
-- @script
INSERT INTO pending_work VALUES ('g', 'q1', repeat('STAGE', 500), 'PENDING', 0, 0, 1, 0, NULL, NULL, NULL, NULL, 'p');
UPDATE pending_work SET fence = 2;
UPDATE pending_work SET quote_id = 'q2';
DELETE FROM pending_work;
