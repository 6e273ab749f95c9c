//! Changes and tables as the messages of pgoutput.

use super::{Change, OUTBOX_OID, Stored, WORK_OID, routing};
use postrider_core::paused::{PauseChange, Paused};
use postrider_core::pgoutput::encode::{self, OldValues};
use postrider_core::pgoutput::{LogicalMessage, TupleValue};
use postrider_core::position::Lsn;
use postrider_core::relation::{Column, Relation, ReplicaIdentity};
use postrider_core::time::Timestamp;
use serde_json::json;

/// The description of a table.
pub fn description(oid: u32) -> Vec<u8> {
    let (name, names, keys): (_, &[&str], usize) = if oid == WORK_OID {
        let names = &[
            "group_id",
            "quote_id",
            "stage",
            "stage_state",
            "attempt_count",
            "deferral_count",
            "fence",
            "epoch",
            "next_attempt_at",
            "lease_until",
            "lease_owner",
            "closed_at",
            "definition",
            "payload",
        ];
        ("pending_work", names, 2)
    } else {
        ("outbox_event", &["id", "aggregate_key", "event_type", "payload", "headers", "topic"], 1)
    };
    let columns = names.iter().enumerate().map(|(place, name)| Column {
        name: (*name).to_owned(),
        type_oid: if *name == "payload" { 3_802 } else { 25 },
        type_modifier: -1,
        key: place < keys,
    });
    let relation = Relation {
        oid,
        schema: "public".into(),
        name: name.into(),
        replica_identity: ReplicaIdentity::Default,
        columns: columns.collect(),
    };
    let mut message = Vec::new();
    encode::relation(&mut message, &relation);
    message
}

/// A change as a message, and the table that must be described before it.
pub fn encoded(change: &Change, commit_lsn: Lsn) -> (Option<u32>, Vec<u8>) {
    let mut out = Vec::with_capacity(256);
    match change {
        Change::InsertWork(stored) => encode_work(&mut out, stored, true),
        Change::UpdateWork(stored) => encode_work(&mut out, stored, false),
        Change::TellWork(stored) => {
            let prefix = routing().work.unwrap().notice_prefix();
            let content = notice(stored);
            let message = LogicalMessage { transactional: true, lsn: commit_lsn, prefix: &prefix, content: &content };
            encode::logical_message(&mut out, &message);
            return (None, out);
        }
        Change::Silent(_) => unreachable!("the log does not show it"),
        Change::Pause(change) => {
            let (prefix, content) = (routing().work.unwrap().pause_prefix(), order(change));
            let message = LogicalMessage { transactional: true, lsn: commit_lsn, prefix: &prefix, content: &content };
            encode::logical_message(&mut out, &message);
            return (None, out);
        }
        Change::InsertEvent { id, key } => {
            let text = |text: &'static str| TupleValue::Text(text.as_bytes());
            let values = [
                TupleValue::Text(id.as_bytes()),
                TupleValue::Text(key.as_bytes()),
                text("submitted"),
                text("{\"n\": 1}"),
                TupleValue::Null,
                TupleValue::Null,
            ];
            encode::insert(&mut out, OUTBOX_OID, &values);
        }
        Change::DeleteEvent { id } => {
            let mut values = [TupleValue::Null; 6];
            values[0] = TupleValue::Text(id.as_bytes());
            encode::delete(&mut out, OUTBOX_OID, OldValues::Key(&values));
        }
        Change::Message { prefix, content } => {
            let message = LogicalMessage { transactional: true, lsn: commit_lsn, prefix, content };
            encode::logical_message(&mut out, &message);
            return (None, out);
        }
    }
    let oid = if matches!(change, Change::InsertWork(_) | Change::UpdateWork(_)) { WORK_OID } else { OUTBOX_OID };
    (Some(oid), out)
}

/// As the work table's trigger writes it.
fn notice(stored: &Stored) -> Vec<u8> {
    let version = &stored.version;
    let notice = json!({
        "key": version.key.parts().collect::<Vec<_>>(),
        "stage": version.stage.as_str(),
        "stage_state": version.state.as_str(),
        "attempt_count": version.attempt_count.to_string(),
        "deferral_count": version.deferral_count.to_string(),
        "fence": version.fence.to_string(),
        "epoch": version.epoch.to_string(),
        "next_attempt_at": version.next_attempt_at.map(timestamp),
        "lease_until": version.lease_until.map(timestamp),
        "lease_owner": version.lease_owner.map(|owner| owner.to_string()),
        "closed_at": version.closed.then_some("2026-01-01 00:00:00+00"),
        "definition": version.definition.as_ref().map(|definition| definition.as_str()),
    });
    notice.to_string().into_bytes()
}

/// As the statement of an operator writes it.
fn order(change: &PauseChange) -> Vec<u8> {
    let [stage, definition, endpoint] = change.part().columns();
    let order = match change {
        PauseChange::Pause(Paused { since, who, why, .. }) => json!({
            "op": "pause", "stage": stage, "definition": definition, "endpoint": endpoint,
            "since": since.0, "who": who, "why": why,
        }),
        PauseChange::Resume(_) => {
            json!({ "op": "resume", "stage": stage, "definition": definition, "endpoint": endpoint })
        }
    };
    order.to_string().into_bytes()
}

fn encode_work(out: &mut Vec<u8>, stored: &Stored, insert: bool) {
    let version = &stored.version;
    let counts = [
        version.attempt_count.to_string(),
        version.deferral_count.to_string(),
        version.fence.to_string(),
        version.epoch.to_string(),
    ];
    let times = [version.next_attempt_at, version.lease_until].map(|at| at.map(timestamp));
    let owner = version.lease_owner.map(|owner| owner.to_string());
    let mut values: Vec<TupleValue<'_>> = version.key.parts().map(|part| TupleValue::Text(part.as_bytes())).collect();
    values.push(TupleValue::Text(version.stage.as_str().as_bytes()));
    values.push(TupleValue::Text(version.state.as_str().as_bytes()));
    values.extend(counts.iter().map(|count| TupleValue::Text(count.as_bytes())));
    values.extend(times.iter().map(|time| optional(time.as_deref())));
    values.push(optional(owner.as_deref()));
    values.push(optional(version.closed.then_some("2026-01-01 00:00:00+00")));
    values.push(optional(version.definition.as_ref().map(|definition| definition.as_str())));
    if insert {
        values.push(TupleValue::Text(stored.payload.as_bytes()));
        encode::insert(out, WORK_OID, &values);
    } else {
        values.push(TupleValue::Unchanged);
        encode::update(out, WORK_OID, None, &values);
    }
}

fn optional(text: Option<&str>) -> TupleValue<'_> {
    text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes()))
}

/// As the server writes it at UTC. The days of the proleptic calendar (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn timestamp(at: Timestamp) -> String {
    let seconds = at.0.div_euclid(1_000_000);
    let (micros, day_second) = (at.0.rem_euclid(1_000_000), seconds.rem_euclid(86_400));
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (day_second / 3_600, day_second / 60 % 60, day_second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}+00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_parser_reads_it() {
        for micros in [0, 951_782_400_000_000, 1_767_225_600_123_456, 4_107_542_399_999_999] {
            let text = timestamp(Timestamp(micros));
            assert_eq!(postrider_core::value::parse_timestamptz(&text), Some(Timestamp(micros)), "{text}");
        }
    }
}
