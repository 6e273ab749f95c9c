//! What a run of the engine is told; components never keep these among their own state.

use crate::limits::Limits;
use postrider_core::members::{Presence, Together};
use postrider_core::rate::Rate;
use postrider_core::stage::Definitions;
use postrider_core::work::OwnerId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// When the slot may be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// Up to what every required sink has settled and the journal has fsynced.
    Sinks,
    /// Up to what the journal has fsynced.
    Journal,
}

/// What to do where the journal is full of what a required sink lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Nothing more is taken in: the server keeps its log.
    Block,
    /// The oldest goes, and with it what the sink lacks: it is on record, and the slot no longer waits for the sink.
    DropOldest,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub ack: Ack,
    pub when_full: WhenFull,
    /// Above so many bytes of log kept for the slot, [`Ack::Sinks`] confirms at the journal until the slot is below
    /// it again. `None`: never.
    pub wal_guard_bytes: Option<u64>,
    pub periods: Periods,
    pub limits: Limits,
}

/// How often the engine speaks on its own account.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// Between heartbeats written to the primary.
    pub heartbeat: Duration,
    /// Between looks at the slot in `pg_replication_slots`.
    pub slot_health: Duration,
    /// Between safety sweeps over the open rows.
    pub sweep: Duration,
    /// Between saves of the consumers' positions.
    pub positions: Duration,
    /// Between the lines of the log in which an onlooker sums up what it saw.
    pub summary: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Periods {
            heartbeat: Duration::from_secs(10),
            slot_health: Duration::from_secs(30),
            sweep: Duration::from_secs(60),
            positions: Duration::from_secs(1),
            summary: Duration::from_secs(60),
        }
    }
}

/// What an endpoint takes from one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointPolicy {
    /// Requests in flight at once.
    pub concurrency: Option<u32>,
    pub rate: Option<Rate>,
}

/// What to do about a row that somebody wrote while an attempt of ours ran, without raising its fence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnfencedWrites {
    /// It is parked as it was written: a person finds out who does that, and what became of the stage.
    #[default]
    Park,
    /// It goes on as it was written.
    Reread,
}

/// What the executor is told.
#[derive(Debug, Clone)]
pub struct WorkSettings {
    pub definitions: Definitions,
    /// What endpoints take over all their stages, by origin.
    pub endpoints: BTreeMap<Arc<str>, EndpointPolicy>,
    /// Names of the key's columns, in the order of the key's parts: the first members of a request's body.
    pub key_names: Vec<String>,
    /// Which part of a key names the group that takes turns with the others; `None`: rows take theirs one by one.
    pub fair_by: Option<usize>,
    /// Random at each process start.
    pub owner: OwnerId,
    /// A claimed row names its owner. Where the table has no column for it, the fence alone says whose a claim is.
    pub names_owner: bool,
    /// Our own transitions do not come back through the log.
    pub quiet: bool,
    pub unfenced: UnfencedWrites,
    /// How long the history of a workflow is kept after its end; `None`: there is none, or it is not ours to purge.
    pub history: Option<Duration>,
}

impl WorkSettings {
    /// What the executor says of itself to the others.
    pub(crate) fn presence(&self) -> Presence {
        let definitions = self.definitions.graphs().map(|(name, _)| name.clone()).collect();
        // For a stage that takes them one at a time, the rows of a group must be one executor's.
        let serial = self.definitions.steps().any(|(_, policy)| policy.serial);
        let together = match self.fair_by.and_then(|part| u32::try_from(part).ok()) {
            _ if !serial => Together::No,
            Some(part) => Together::Part(part),
            None => Together::All,
        };
        Presence { owner: self.owner, leaving: false, definitions, together }
    }
}
