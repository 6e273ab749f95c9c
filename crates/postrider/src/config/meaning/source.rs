//! The meaning of the parts about the server, the journal, the outboxes and the process itself.

use crate::config::meaning::{Journal, NAME_BYTES_MAX, Reader, Source, clause, reason};
use crate::config::place::{At, Place};
use crate::config::quantity::ByteSize;
use crate::config::secret::Secret;
use crate::config::typed;
use postrider_core::route::{OutboxColumns, OutboxPrefix, OutboxTable};
use postrider_engine::{Ack, Periods, WhenFull};
use postrider_postgres::{ConnectOptions, Failover};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const SEGMENT_BYTES: ByteSize = ByteSize(64 << 20);
const SEGMENT_BYTES_MIN: ByteSize = ByteSize(1 << 20);
const SEGMENT_BYTES_MAX: ByteSize = ByteSize(1 << 30);
const RETENTION_BYTES: ByteSize = ByteSize(20 << 30);
const STAGING_BYTES: ByteSize = ByteSize(10 << 30);
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// One place where events come from.
enum Outbox {
    Table(Box<OutboxTable>),
    Prefix(OutboxPrefix),
}

impl Reader<'_> {
    pub(super) fn source(&mut self, source: Option<At<typed::Source>>) -> Option<Source> {
        let At { value: source, place } = self.mandatory(source, Place::FILE, "source")?;
        let slot = self.slot(source.slot);
        let publication = self.publication(source.publication);
        let options = self.connect_options(source.url, place);
        let options = match source.password_command {
            Some(command) => options.and_then(|options| self.with_password_command(options, command)),
            None => options,
        };
        let streaming = source.streaming.is_none_or(|streaming| streaming.value);
        let two_phase = source.two_phase.is_some_and(|two_phase| two_phase.value);
        let failover = match source.failover {
            None => Failover::WherePossible,
            Some(At { value: true, .. }) => Failover::Wanted,
            Some(At { value: false, .. }) => Failover::Unwanted,
        };
        let standby = source.standby.is_some_and(|standby| standby.value);
        if standby && let Some(At { value: true, place }) = source.failover {
            self.problems.report_with_hint(
                place,
                "`source.failover` does not go with `source.standby`: only a primary's slot is kept on standbys",
                "take one of them out",
            );
        }
        Some(Source {
            options: options?,
            slot: slot?,
            publication: publication?,
            streaming,
            two_phase,
            failover,
            standby,
            temporary: false,
        })
    }

    fn connect_options(&mut self, url: Option<At<Secret>>, place: Place) -> Option<ConnectOptions> {
        let url = match url {
            Some(url) => self.resolve(url, "source.url")?,
            // The environment has it all, as for psql.
            None => At { value: Secret::new(""), place },
        };
        match ConnectOptions::parse(url.value.reveal(), self.environment) {
            Ok(options) => Some(options),
            Err(error) => {
                let message = format!("`source.url` is no address of a server: {}", reason(&error));
                let hint = error.hint().unwrap_or("Write postgres://user@host:5432/database.");
                self.problems.report_with_hint(url.place, message, clause(hint));
                None
            }
        }
    }

    fn with_password_command(
        &mut self,
        options: ConnectOptions,
        command: At<Vec<At<Secret>>>,
    ) -> Option<ConnectOptions> {
        let words = command.value.iter().map(|word| word.value.reveal().to_owned()).collect();
        match options.with_password_command(words) {
            Ok(options) => Some(options),
            Err(error) => {
                let message = format!("`source.password_command` is of no use: {}", reason(&error));
                self.problems.report_with_hint(command.place, message, clause(error.hint().unwrap_or_default()));
                None
            }
        }
    }

    /// The server's rule for slot names (manual, "Querying and Manipulating Replication Slots").
    fn slot(&mut self, slot: Option<At<String>>) -> Option<String> {
        let Some(slot) = slot else { return Some("postrider".to_owned()) };
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if slot.value.is_empty() || slot.value.len() > NAME_BYTES_MAX || !slot.value.bytes().all(allowed) {
            self.problems.report_with_hint(
                slot.place,
                "`source.slot` is no name of a replication slot",
                "lower-case letters, digits and underscores, at most 63",
            );
            return None;
        }
        Some(slot.value)
    }

    fn publication(&mut self, publication: Option<At<String>>) -> Option<String> {
        let Some(publication) = publication else { return Some("postrider".to_owned()) };
        if publication.value.is_empty() || publication.value.len() > NAME_BYTES_MAX || publication.value.contains('\0')
        {
            self.problems.report(publication.place, "`source.publication` is no name of a publication");
            return None;
        }
        Some(publication.value)
    }

    pub(super) fn journal(&mut self, journal: Option<At<typed::Journal>>) -> Option<Journal> {
        let At { value: journal, place } = self.mandatory(journal, Place::FILE, "journal")?;
        let dir = self.name(journal.dir, place, "journal.dir");
        let segment = journal.segment_size.unwrap_or(At { value: SEGMENT_BYTES, place });
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment.value) {
            self.problems.report(
                segment.place,
                format!("`journal.segment_size` is out of range: {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"),
            );
        }
        let kept = journal.retention.map(|retention| retention.value).unwrap_or_default();
        let retention = kept.size.unwrap_or(At { value: RETENTION_BYTES, place });
        let retention_age = kept.age.map(|age| self.span("journal.retention.age", Some(age), Duration::MAX));
        let when_full = self.when_full(journal.when_full);
        if retention.value < segment.value {
            self.problems.report_with_hint(
                retention.place,
                "`journal.retention.size` is less than one segment",
                format!("a segment has {}", segment.value),
            );
        }
        let dir = PathBuf::from(dir?.value);
        let staging_bytes = journal.staging_size.map_or(STAGING_BYTES, |size| size.value).0;
        Some(Journal {
            dir,
            segment_bytes: segment.value.0,
            retention_bytes: retention.value.0,
            retention_age,
            when_full: when_full?,
            staging_bytes,
        })
    }

    fn when_full(&mut self, when_full: Option<At<String>>) -> Option<WhenFull> {
        let Some(when_full) = when_full else { return Some(WhenFull::Block) };
        match when_full.value.as_str() {
            "block" => Some(WhenFull::Block),
            "drop_oldest" => Some(WhenFull::DropOldest),
            _ => {
                self.word(&when_full, "journal.when_full", &["block", "drop_oldest"], &[]);
                None
            }
        }
    }

    pub(super) fn ack(&mut self, ack: Option<At<String>>) -> Option<Ack> {
        let Some(ack) = ack else { return Some(Ack::Sinks) };
        match ack.value.as_str() {
            "sinks" => Some(Ack::Sinks),
            "journal" => Some(Ack::Journal),
            _ => {
                self.word(&ack, "ack", &["sinks", "journal"], &[]);
                None
            }
        }
    }

    pub(super) fn outboxes(
        &mut self,
        outboxes: Option<At<Vec<At<typed::Outbox>>>>,
    ) -> (Vec<OutboxTable>, Vec<OutboxPrefix>) {
        let mut names = BTreeSet::new();
        let mut tables = Vec::new();
        let mut prefixes = Vec::new();
        for At { value, place } in outboxes.map(|outboxes| outboxes.value).unwrap_or_default() {
            let Some(outbox) = self.outbox(value, place) else { continue };
            let name = match &outbox {
                Outbox::Table(table) => format!("table {}.{}", table.schema, table.table),
                Outbox::Prefix(prefix) => format!("prefix {}", prefix.prefix),
            };
            if !names.insert(name) {
                self.problems.report(place, "this outbox stands here twice");
            }
            match outbox {
                Outbox::Table(table) => tables.push(*table),
                Outbox::Prefix(prefix) => prefixes.push(prefix),
            }
        }
        (tables, prefixes)
    }

    fn outbox(&mut self, outbox: typed::Outbox, place: Place) -> Option<Outbox> {
        match (outbox.table, outbox.prefix) {
            (Some(table), None) => {
                let table = self.table(Some(table), place, "outbox.table");
                let columns = self.outbox_columns(outbox.columns.map(|columns| columns.value).unwrap_or_default());
                let (schema, table) = table?;
                Some(Outbox::Table(Box::new(OutboxTable { schema, table, columns })))
            }
            (None, Some(prefix)) => {
                if let Some(columns) = outbox.columns {
                    self.problems.report(columns.place, "`outbox.columns` goes with `table`: a message has no columns");
                }
                self.prefix(prefix, place)
            }
            (Some(_), Some(prefix)) => {
                let hint = "make it two [[outbox]]";
                self.problems.report_with_hint(prefix.place, "`outbox` has both `table` and `prefix`", hint);
                None
            }
            (None, None) => {
                self.problems.report(place, "`outbox` has neither `table` nor `prefix`");
                None
            }
        }
    }

    fn prefix(&mut self, prefix: At<String>, place: Place) -> Option<Outbox> {
        let prefix = self.name(Some(prefix), place, "outbox.prefix")?;
        if prefix.value.starts_with("postrider.") {
            self.problems.report(prefix.place, "`outbox.prefix` begins with `postrider.`, which our own messages do");
            return None;
        }
        Some(Outbox::Prefix(OutboxPrefix { prefix: prefix.value }))
    }

    fn outbox_columns(&mut self, typed: typed::OutboxColumns) -> OutboxColumns {
        const PATH: &str = "outbox.columns";
        OutboxColumns {
            id: self.column(typed.id, PATH, "id"),
            key: optional_column(typed.aggregate_key, "aggregate_key"),
            event_type: optional_column(typed.event_type, "event_type"),
            payload: self.column(typed.payload, PATH, "payload"),
            headers: optional_column(typed.headers, "headers"),
            topic: optional_column(typed.topic, "topic"),
            created_at: optional_column(typed.created_at, "created_at"),
            published_at: optional_column(typed.published_at, "published_at"),
        }
    }

    pub(super) fn listen(&mut self, server: Option<At<typed::Server>>) -> Option<SocketAddr> {
        let Some(listen) = server.and_then(|server| server.value.listen) else { return Some(LISTEN) };
        let address = listen.value.parse().ok();
        if address.is_none() {
            self.problems.report_with_hint(
                listen.place,
                "`server.listen` is no address with a port",
                "write \"127.0.0.1:9464\"",
            );
        }
        address
    }

    pub(super) fn periods(&mut self, typed: Option<At<typed::Periods>>) -> Periods {
        let typed = typed.map(|periods| periods.value).unwrap_or_default();
        let default = Periods::default();
        Periods {
            heartbeat: self.span("periods.heartbeat", typed.heartbeat, default.heartbeat),
            slot_health: self.span("periods.slot_health", typed.slot_health, default.slot_health),
            sweep: self.span("periods.sweep", typed.sweep, default.sweep),
            summary: self.span("periods.summary", typed.summary, default.summary),
            ..default
        }
    }
}

/// The typed name, or that of the key; an empty text says that the table has no such column.
fn optional_column(typed: Option<At<String>>, default: &str) -> Option<String> {
    match typed {
        None => Some(default.to_owned()),
        Some(name) if name.value.is_empty() => None,
        Some(name) => Some(name.value),
    }
}
