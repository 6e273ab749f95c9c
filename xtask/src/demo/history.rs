//! What happened, as the lines that `postrider verify-history` reads: written down from the tables, and checked.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tokio_postgres::Client;

use super::house::{ATTEMPTS, STAGES};
use crate::error::{Context, Error, Result};

/// What the checker said of a run.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) holds: bool,
    /// The first breaks, and the sum.
    pub(super) told: String,
}

/// The sink, as the configuration names it.
const CONSUMER: &str = "events";

/// So many breaks are shown of a run that has more.
const BREAKS_SHOWN: usize = 5;

/// The facts of all tables by the server's clock. Those of one thread (a row, the events of one key) stand in the order that they have by
/// themselves, by fence and by number: of two commits, the later can have begun first.
const LINES: &str = "
    WITH attempts AS (
        SELECT key, stage, epoch, fence, owner, outcome, coalesce(reason, '') AS reason, next_stage, next_state,
               coalesce(started_at, ended_at) AS started_at, ended_at
          FROM postrider.work_history WHERE work_table = 'public.pending_work'::regclass),
    facts (thread, place, step, at, line) AS (
        SELECT group_id || '/' || quote_id, 0, 0, created_at,
               jsonb_build_object('record', 'submitted', 'key', ARRAY[group_id, quote_id], 'stage', $1::text)
          FROM pending_work
        UNION ALL
        SELECT array_to_string(key, '/'), fence, 1, started_at,
               jsonb_build_object('record', 'claim_written', 'key', key, 'stage', stage, 'epoch', epoch, 'fence', fence, 'owner', owner)
          FROM attempts
        UNION ALL
        SELECT array_to_string(key, '/'), fence, 2, ended_at,
               jsonb_build_object('record', 'checkpoint_written', 'key', key, 'stage', stage, 'fence', fence, 'owner', owner,
                                  'deferred', outcome = 'deferred')
          FROM attempts WHERE outcome IN ('done', 'retry', 'deferred', 'parked', 'unknown', 'released')
        UNION ALL
        SELECT array_to_string(key, '/'), fence, 3, ended_at,
               jsonb_build_object('record', 'stage_entered', 'key', key, 'stage', next_stage, 'cause', 'success')
          FROM attempts WHERE outcome = 'done' AND next_state <> 'DONE'
        UNION ALL
        SELECT array_to_string(key, '/'), fence, 3, ended_at,
               CASE next_state WHEN 'DONE' THEN jsonb_build_object('record', 'closed', 'key', key)
                               ELSE jsonb_build_object('record', 'parked', 'key', key, 'reason', reason) END
          FROM attempts WHERE next_state IN ('DONE', 'NON_RESUMABLE', 'UNKNOWN')
        UNION ALL
        SELECT 'request ' || id, id, 0, received_at,
               jsonb_build_object('record', 'request_received', 'key', ARRAY[group_id, quote_id], 'stage', stage,
                                  'idempotency_key', idempotency_key, 'fingerprint', encode(fingerprint, 'hex'),
                                  'attempt', attempt, 'fence', fence)
          FROM quoting.requests
        UNION ALL
        SELECT 'request ' || id, id, 1, answered_at,
               jsonb_build_object('record', 'answer_given', 'idempotency_key', idempotency_key,
                                  'fingerprint', encode(fingerprint, 'hex'), 'body_hash', encode(answer_hash, 'hex'))
          FROM quoting.requests WHERE replayed IS NOT NULL AND answered_at IS NOT NULL
        UNION ALL
        SELECT 'effect ' || id, id, 0, at,
               jsonb_build_object('record', 'effect_committed', 'key', ARRAY[group_id, quote_id], 'stage', stage)
          FROM quoting.stage_effects
        UNION ALL
        SELECT 'events ' || aggregate_key, (payload ->> 'seq')::bigint, 0, created_at,
               jsonb_build_object('record', 'event_committed', 'id', id, 'key', aggregate_key)
          FROM outbox_event
        UNION ALL
        SELECT 'delivery ' || id, id, 0, received_at,
               jsonb_build_object('record', 'event_delivered', 'consumer', $2::text, 'id', event_id)
          FROM quoting.event_effects),
    timed AS (
        SELECT max(at) OVER (PARTITION BY thread ORDER BY place, step) AS at, thread, place, step, line FROM facts)
    SELECT line::text FROM timed ORDER BY at, thread, place, step";

/// Writes down what happened, and has it checked by the program `postrider`.
pub(super) async fn verify(client: &Client, postrider: &Path, file: &Path) -> Result<Verdict> {
    let first = STAGES.first().map_or("", |(name, _)| name);
    let rows = client.query(LINES, &[&first, &CONSUMER]).await.context(|| "cannot read what happened")?;
    let stages: Vec<_> = STAGES.iter().map(|(name, _)| json!({"name": name, "attempt_limit": ATTEMPTS})).collect();
    let mut text = json!({"history": 1, "stages": stages, "consumers": [CONSUMER], "at_rest": true}).to_string();
    for row in &rows {
        text.push('\n');
        text.push_str(row.get(0));
    }
    text.push('\n');
    fs::write(file, text).context(|| format!("cannot write {}", file.display()))?;
    let output = Command::new(postrider).arg("verify-history").arg(file).output();
    let output = output.context(|| "cannot run postrider verify-history")?;
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(code @ (0 | 1)) => Ok(Verdict { holds: code == 0, told: shortened(&said) }),
        _ => Err(Error::new(format!("postrider verify-history: {complained}"))),
    }
}

/// The breaks come first, the sum last.
fn shortened(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    let (sum, breaks) = lines.split_last().map_or(("", &[][..]), |(sum, breaks)| (*sum, breaks));
    let mut shown: Vec<_> = breaks.iter().take(BREAKS_SHOWN).map(ToString::to_string).collect();
    if breaks.len() > BREAKS_SHOWN {
        shown.push(format!("… and {} more", breaks.len() - BREAKS_SHOWN));
    }
    // The file goes with the run, unless somebody named one.
    shown.push(format!("history: {}", sum.rsplit(": ").next().unwrap_or_default()));
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_breaks_are_shown_and_the_sum() {
        assert_eq!(shown_of(1), "I1: 0\nhistory: records 9, violations 1");
        assert!(shown_of(7).ends_with("I1: 4\n… and 2 more\nhistory: records 9, violations 7"));
    }

    fn shown_of(count: usize) -> String {
        let breaks: String = (0..count).map(|number| format!("I1: {number}\n")).collect();
        shortened(&format!("{breaks}f: records 9, violations {count}\n"))
    }
}
