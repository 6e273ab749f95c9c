//! The state that a slot is in, told from the catalogue, with what it means for us: the same words for the one who opens the
//! stream and for the one who only checks.

use postrider_core::error::{Error, ErrorKind};
use postrider_core::position::Lsn;

use crate::quote::drop_slot_statement;

/// What to type where what lies between slot and journal is known to be gone.
const ADOPT_HINT: &str = "What lies between cannot be read any more. Find out who moved the slot; then `postrider adopt` puts the gap on record and goes on behind it.";

/// A slot's row, and who reads from it, each column as text; `$1` is the slot's name. It is the same over the simple and the
/// extended protocol. `to_jsonb` finds the columns that not every version has; in 16 any lost slot
/// is `conflicting`, but one whose log was removed has no `restart_lsn`; `synced` stays true after a promotion.
pub(crate) const SLOT_QUERY: &str = "
    SELECT s.plugin::text, s.slot_type, s.database::text, s.temporary::text, coalesce(s.two_phase, false)::text,
           coalesce(s.wal_status, 'lost'), to_jsonb(s) ->> 'invalidation_reason',
           CASE WHEN s.restart_lsn IS NOT NULL THEN to_jsonb(s) ->> 'conflicting' END,
           s.confirmed_flush_lsn::text, (pg_is_in_recovery() AND (to_jsonb(s) ->> 'synced')::boolean)::text, s.active_pid::text,
           a.application_name, a.client_addr::text,
           (SELECT t.total_txns::text FROM pg_stat_replication_slots AS t WHERE t.slot_name = s.slot_name),
           to_jsonb(s) ->> 'failover'
    FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
    WHERE s.slot_name = $1";

/// The slot as `pg_replication_slots` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    plugin: Option<String>,
    kind: String,
    database: String,
    pub(crate) temporary: bool,
    /// Prepared transactions come before their verdict, for good.
    pub(crate) two_phase: bool,
    wal_status: String,
    /// Why it was invalidated; from version 17 on.
    invalidation_reason: Option<String>,
    /// On a standby, from version 16 on: the primary removed rows of the catalogue that it needed.
    conflicting: bool,
    pub(crate) confirmed: Option<Lsn>,
    /// It is a copy of the primary's slot, on a standby that was not promoted.
    pub(crate) synced: bool,
    /// Who reads from it now.
    pub(crate) holder: Option<Holder>,
    /// Transactions sent from it since it was made or the server lost its statistics.
    transactions_sent: Option<u64>,
    /// Standbys are to keep a copy of it; from version 17 on.
    pub(crate) failover: bool,
}

/// The reader of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    process_id: String,
    pub(crate) application: String,
    address: String,
}

/// What the slot is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) slot: &'a str,
    /// The database that we are in.
    pub(crate) database: &'a str,
    /// The end of our journal; [`Lsn::ZERO`] where it is empty.
    pub(crate) durable_end: Lsn,
    /// One of us read from the slot until now, and may have moved it.
    pub(crate) after_peer: bool,
}

/// Every state a slot can be in, as we see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotState {
    Missing,
    Physical,
    OtherPlugin(String),
    OtherDatabase(String),
    /// Invalidated: why, where the server says it.
    Lost(Option<String>),
    Temporary,
    /// A copy of the primary's slot on a standby: the server lets nobody read from it.
    Synced,
    /// Confirmed past our journal. `anew`: nothing was ever sent from it, so that it was made after our journal's end.
    Ahead {
        confirmed: Lsn,
        anew: bool,
    },
    /// Confirmed before our journal's end, by a crash of the server: what comes again is dropped.
    Behind {
        confirmed: Lsn,
    },
    Level,
}

impl Slot {
    /// Reads a row of [`SLOT_QUERY`]. `None` where it is no such row.
    pub(crate) fn from_row(mut next: impl FnMut() -> Option<String>) -> Option<Slot> {
        let truth = |text: Option<String>| matches!(text.as_deref(), Some("true" | "t"));
        let (plugin, kind, database) = (next(), next()?, next().unwrap_or_default());
        let (temporary, two_phase, wal_status) = (truth(next()), truth(next()), next()?);
        let (invalidation_reason, conflicting) = (next(), truth(next()));
        let confirmed = match next() {
            None => None,
            Some(text) => Some(text.parse().ok()?),
        };
        let synced = truth(next());
        let (process_id, application, address) = (next(), next().unwrap_or_default(), next().unwrap_or_default());
        let holder = process_id.map(|process_id| Holder { process_id, application, address });
        let transactions_sent = next().and_then(|text| text.parse().ok());
        let failover = truth(next());
        Some(Slot {
            plugin,
            kind,
            database,
            temporary,
            two_phase,
            wal_status,
            invalidation_reason,
            conflicting,
            confirmed,
            synced,
            holder,
            transactions_sent,
            failover,
        })
    }

    /// The server is about to drop the log that the slot needs.
    pub(crate) fn is_in_danger(&self) -> bool {
        self.wal_status == "unreserved"
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.wal_status == "lost" || self.conflicting || self.invalidation_reason.is_some()
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.process_id)?;
        for (label, text) in [("application", &self.application), ("from", &self.address)] {
            if !text.is_empty() {
                write!(f, ", {label} \"{text}\"")?;
            }
        }
        Ok(())
    }
}

/// What first stands in the way comes first: a lost slot of another plugin is of another plugin.
pub(crate) fn judge(slot: Option<&Slot>, place: Place<'_>) -> SlotState {
    let Some(slot) = slot else { return SlotState::Missing };
    match &slot.plugin {
        _ if slot.kind != "logical" => return SlotState::Physical,
        Some(plugin) if plugin != "pgoutput" => return SlotState::OtherPlugin(plugin.clone()),
        _ if slot.database != place.database => return SlotState::OtherDatabase(slot.database.clone()),
        _ if slot.is_lost() => return SlotState::Lost(lost_reason(slot)),
        _ if slot.temporary => return SlotState::Temporary,
        _ if slot.synced => return SlotState::Synced,
        _ => {}
    }
    match slot.confirmed {
        Some(confirmed) if place.durable_end > Lsn::ZERO && confirmed > place.durable_end => {
            SlotState::Ahead { confirmed, anew: slot.transactions_sent == Some(0) }
        }
        Some(confirmed) if confirmed < place.durable_end => SlotState::Behind { confirmed },
        _ => SlotState::Level,
    }
}

/// Why the stream cannot be opened, if the state is a reason.
pub(crate) fn refusal(state: &SlotState, place: Place<'_>) -> Option<Error> {
    let Place { slot: name, database, durable_end, after_peer } = place;
    let foreign = |message: &str, detail: String| {
        Error::new(ErrorKind::SlotForeign, message).with_detail(detail).with_hint(format!(
            "Name a slot of ours in the configuration, or drop this one if nobody needs it: {}",
            drop_slot_statement(name)
        ))
    };
    let error = match state {
        SlotState::Level | SlotState::Behind { .. } => return None,
        SlotState::Ahead { .. } if after_peer => return None,
        SlotState::Ahead { confirmed, anew } => return Some(ahead(name, *confirmed, durable_end, *anew)),
        SlotState::Missing => Error::new(ErrorKind::SlotMissing, "the replication slot does not exist")
            .with_detail(format!("There is no replication slot \"{name}\" for the database \"{database}\"."))
            .with_hint("`postrider setup` creates it. If there was one, what it had not yet sent is lost, and `postrider adopt` puts that on record."),
        SlotState::Physical => foreign(
            "the replication slot is not one for pgoutput",
            format!("The slot \"{name}\" is a physical one."),
        ),
        SlotState::OtherPlugin(plugin) => foreign(
            "the replication slot is not one for pgoutput",
            format!("The slot \"{name}\" is one for plugin \"{plugin}\"."),
        ),
        SlotState::OtherDatabase(other) => foreign(
            "the replication slot belongs to another database",
            format!("The slot \"{name}\" is in database \"{other}\", we are in \"{database}\"."),
        ),
        SlotState::Temporary => foreign(
            "the replication slot is another session's temporary one",
            format!("The slot \"{name}\" goes with its session."),
        ),
        SlotState::Synced => Error::new(ErrorKind::SlotForeign, "the replication slot is a standby's copy of the primary's")
            .with_detail(format!("The slot \"{name}\" is kept in step with the primary's until this server is promoted, and nobody can read from it before."))
            .with_hint("Give the primary's address; or, to read from this standby, the name of another slot."),
        SlotState::Lost(reason) => lost(name, reason.as_deref()),
    };
    Some(error)
}

/// Whoever moved the slot past our journal took what lies between.
fn ahead(name: &str, confirmed: Lsn, durable_end: Lsn, anew: bool) -> Error {
    let (message, why) = if anew {
        (
            "the replication slot was made anew behind our journal",
            "nothing was ever sent from it, so that it was dropped and made again",
        )
    } else {
        (
            "the replication slot is ahead of our journal",
            "somebody else read from the slot or moved it, or the end of the journal was lost",
        )
    };
    let detail =
        format!("The slot \"{name}\" is confirmed up to {confirmed}, our journal ends at {durable_end}: {why}.");
    Error::new(ErrorKind::SlotForeign, message).with_detail(detail).with_hint(ADOPT_HINT)
}

fn lost_reason(slot: &Slot) -> Option<String> {
    slot.invalidation_reason.clone().or_else(|| slot.conflicting.then(|| "conflict".to_owned()))
}

fn lost(name: &str, reason: Option<&str>) -> Error {
    let (why, cure) = match reason {
        Some("idle_timeout") => (
            "nobody read from it for longer than idle_replication_slot_timeout",
            "Set idle_replication_slot_timeout to more than the longest time that Postrider may be away.",
        ),
        Some("rows_removed" | "conflict") => (
            "the primary removed rows of the catalogue that it needed",
            "Set hot_standby_feedback = on on the standby, and let it have a physical slot on the primary.",
        ),
        Some("wal_level_insufficient") => {
            ("the primary's wal_level was lowered below logical", "Set the primary's wal_level to logical again.")
        }
        // In so many words before version 17; the log was removed.
        _ => (
            "it kept more log than max_slot_wal_keep_size allows, and the log was removed",
            "Give max_slot_wal_keep_size more room, or set wal_guard below it.",
        ),
    };
    Error::new(ErrorKind::SlotLost, "the replication slot is lost")
        .with_detail(format!("The slot \"{name}\" was invalidated: {why}."))
        .with_hint(format!(
            "What was not yet read is gone from the log. {cure} {} Then run `postrider setup` and `postrider adopt`.",
            drop_slot_statement(name)
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place { slot: "s", database: "d", durable_end: Lsn(100), after_peer: false };

    fn slot() -> Slot {
        Slot {
            plugin: Some("pgoutput".into()),
            kind: "logical".into(),
            database: "d".into(),
            wal_status: "reserved".into(),
            confirmed: Some(Lsn(100)),
            transactions_sent: Some(7),
            ..Slot::default()
        }
    }

    fn told(slot: Option<&Slot>, place: Place<'_>) -> String {
        refusal(&judge(slot, place), place).map_or("read".to_owned(), |error| {
            assert!(error.hint().is_some(), "no hint: {}", error.report());
            format!("{} {}", error.kind().code(), error.detail().unwrap_or_default())
        })
    }

    /// S-14: a server that idles a slot out needs minutes and its checkpoints; the states are those of its catalogue.
    #[test]
    fn s14_each_state_is_told_apart() {
        let s = slot;
        let invalid =
            |reason: &str| Slot { wal_status: "lost".into(), invalidation_reason: Some(reason.into()), ..s() };
        for (slot, words) in [
            (s(), "read"),
            (Slot { confirmed: Some(Lsn(99)), ..s() }, "read"),
            (Slot { kind: "physical".into(), plugin: None, ..s() }, "PR007 The slot \"s\" is a physical one"),
            (Slot { plugin: Some("wal2json".into()), ..s() }, "PR007 The slot \"s\" is one for plugin \"wal2json\""),
            (Slot { database: "e".into(), ..s() }, "PR007 The slot \"s\" is in database \"e\", we are in \"d\""),
            (Slot { temporary: true, ..s() }, "PR007 The slot \"s\" goes with its session"),
            (Slot { two_phase: true, ..s() }, "read"),
            (Slot { synced: true, ..s() }, "PR007 The slot \"s\" is kept in step with the primary's"),
            (Slot { confirmed: Some(Lsn(101)), ..s() }, "somebody else read from the slot or moved it"),
            (Slot { confirmed: Some(Lsn(101)), transactions_sent: Some(0), ..s() }, "dropped and made again"),
            (Slot { wal_status: "lost".into(), ..s() }, "PR006 The slot \"s\" was invalidated: it kept more log"),
            (invalid("wal_removed"), "it kept more log than max_slot_wal_keep_size"),
            (invalid("idle_timeout"), "longer than idle_replication_slot_timeout"),
            (invalid("rows_removed"), "removed rows of the catalogue"),
            (Slot { conflicting: true, ..s() }, "removed rows of the catalogue"),
            (invalid("wal_level_insufficient"), "wal_level was lowered"),
        ] {
            let told = told(Some(&slot), PLACE);
            assert!(told.contains(words), "{told}");
        }
        assert!(told(None, PLACE).starts_with("PR004 There is no replication slot \"s\""));
    }

    #[test]
    fn a_slot_ahead_is_read_where_the_journal_is_empty_or_a_peer_moved_it() {
        let slot = Slot { confirmed: Some(Lsn(500)), ..slot() };
        assert_eq!(told(Some(&slot), Place { durable_end: Lsn::ZERO, ..PLACE }), "read");
        assert_eq!(told(Some(&slot), Place { after_peer: true, ..PLACE }), "read");
    }
}
