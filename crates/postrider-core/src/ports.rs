//! The doors between the pure core, the loops, and the outside: one trait for each, one boxed future for each batch.
//!
//! An implementation is the real thing (`postrider-postgres`, `postrider-journal`, `postrider-delivery`) or a fake of the
//! simulation; both pass the same port tests.

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::frame::FrameBatch;
use crate::members::Presence;
use crate::outcome::Outcome;
use crate::paused::Paused;
use crate::position::{Generation, Lsn, Position};
use crate::snapshot::Snapshot;
use crate::time::Timestamp;
use crate::trace::Trace;
use crate::transaction::TransactionBatch;
use crate::work::{DefinitionName, OwnerId, StageName, WorkKey, WorkVersion};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A future behind a pointer, so that ports stay object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

// ---- the log -------------------------------------------------------------------------------------------------

/// Whose log this is; a journal belongs to exactly one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceIdentity {
    /// `IDENTIFY_SYSTEM`: the cluster, made by initdb.
    pub system_identifier: u64,
    /// The timeline the server is on now.
    pub timeline: u32,
    pub database: String,
    pub slot: String,
}

impl SourceIdentity {
    /// Why a journal of this source is not one of `now`, a clause for each thing that differs. A later timeline does not: whether
    /// it goes on from where the journal ends is another question.
    pub fn differences(&self, now: &SourceIdentity) -> Vec<String> {
        let mut differs = Vec::new();
        let mut compare = |what: &str, held: &str, asked: &str| {
            differs.push(format!("its {what} is {held}, the server's is {asked}"));
        };
        if self.system_identifier != now.system_identifier {
            let (held, asked) = (self.system_identifier.to_string(), now.system_identifier.to_string());
            compare("system identifier", &held, &asked);
        } else if self.timeline > now.timeline {
            compare("timeline", &self.timeline.to_string(), &now.timeline.to_string());
        }
        for (what, held, asked) in [("database", &self.database, &now.database), ("slot", &self.slot, &now.slot)] {
            if held != asked {
                compare(what, held, asked);
            }
        }
        differs
    }
}

/// The refusal of a server that `journal` (with its article) does not belong to, for what [`SourceIdentity::differences`] found.
pub fn foreign_journal(journal: &str, differs: &[String]) -> Error {
    Error::new(ErrorKind::JournalForeign, "the journal belongs to another source")
        .with_detail(format!("Of {journal}, {}.", differs.join("; ")))
        .with_hint("Connect to the server it belongs to, or give this one an empty directory. If this server is its successor (a restore, another cluster), `postrider adopt` goes on with it in a new generation.")
}

/// The primary's logical replication stream.
pub trait LogSource: Send + Sync + fmt::Debug {
    /// Asks the server who it is.
    fn identify(&self) -> BoxFuture<'_, Result<SourceIdentity>>;

    /// Opens the stream after `durable_end`, the end LSN up to which everything is in our journal; [`Lsn::ZERO`] where the
    /// journal is empty, which starts at the slot's own position. A slot that somebody moved past `durable_end` is refused
    /// (`SlotForeign`), unless one of us was seen to read from it meanwhile: [`LogSession::begins`] then says what is left out.
    /// A source whose slot goes with the session makes one, and begins with what commits from then on ([`Before::Nobody`]).
    /// Does not retry: the caller decides by [`crate::error::ErrorKind::reaction`].
    fn open(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>>;

    /// As `open`, but every transaction comes whole and after its commit: none is streamed while it is in progress.
    fn open_whole(&self, durable_end: Lsn) -> BoxFuture<'_, Result<LogSession>>;
}

/// Who read from a session's slot before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// We did: the stream goes on where our journal ends.
    Ourselves,
    /// Another process of ours, since our last session: what it confirmed is in its journal and not in ours.
    Peer,
    /// Nobody: the slot was made for this session, and goes with it. What was committed before [`LogSession::begins`] does not come.
    Nobody,
}

/// One connection's stream, and the way to say how far we are.
#[derive(Debug)]
pub struct LogSession {
    /// Whose log it is; on a later timeline than before if the server was promoted since.
    pub identity: SourceIdentity,
    /// Where the stream begins: `durable_end`, or the slot's own position where that is further.
    pub begins: Lsn,
    pub before: Before,
    /// What the server said of its transactions before the stream began; `None` from a standby, where what is seen and how far the
    /// log has come do not go together.
    pub outcomes: Option<Outcomes>,
    pub reader: Box<dyn LogReader>,
    pub confirmer: Arc<dyn Confirmer>,
}

/// Which transactions had had their outcome at one moment. A prepared one has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcomes {
    pub snapshot: Snapshot,
    /// The end of the log right after the snapshot was taken: every outcome that it sees stands before.
    pub logged: Lsn,
}

pub trait LogReader: Send + fmt::Debug {
    /// Waits for at least one frame and returns all that have arrived, in order. Cancelling loses nothing.
    /// The orderly end of the stream (server shutdown) and a lost connection are both `Disconnected`.
    fn read(&mut self) -> BoxFuture<'_, Result<FrameBatch>>;
}

/// Feedback to the server. It goes on by itself, on its own task, while everything else is blocked.
pub trait Confirmer: Send + Sync + fmt::Debug {
    /// Everything below `lsn` may be forgotten by the server. Never blocks; lower values than before are ignored; the
    /// value is sent within 100 ms, at once where `now` is set (the server waits for it before it can shut down).
    fn confirm(&self, lsn: Lsn, now: bool);

    /// Everything below `lsn` has been received; reported as the write position, and the cap for every confirm.
    fn received(&self, lsn: Lsn);

    /// Sends what is still unsaid, ends the stream in an orderly way, and returns when the server closed it or after
    /// two seconds.
    fn finish(&self) -> BoxFuture<'_, Result<()>>;
}

// ---- the journal ---------------------------------------------------------------------------------------------

/// RELATION and TYPE messages in force at a place in the log, as a block of [`crate::transaction::push_message`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchemaBlock(pub Vec<u8>);

/// The one writer of the journal.
pub trait JournalWriter: Send + fmt::Debug {
    /// Appends all parts. Followers see a transaction once its last part is appended. Returns the end LSN of the last
    /// complete transaction or mark in the journal. `schema` is what is in force behind it, for the head of a new
    /// segment. The call writes to the page cache and does not wait for the disk.
    fn append(&mut self, batch: &TransactionBatch, schema: &SchemaBlock) -> Result<Lsn>;

    /// Cuts the parts of a transaction whose last part never came, because the connection was lost within it.
    fn discard_partial(&mut self) -> Result<()>;

    /// From here on the log is that of `identity`, the same on a later timeline, and begins at `begins`: at the journal's end, or
    /// behind it where something is left out that [`Journal::record`] has on record. Changes nothing where both are as
    /// they were.
    fn go_on(&mut self, identity: &SourceIdentity, begins: Lsn, schema: &SchemaBlock) -> Result<()>;
}

/// What a consumer, or every one, does not get from the journal: on record until a person has accepted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// When it was found, on this machine's clock.
    pub at: Timestamp,
    /// Whom it concerns; `None`: everybody who reads the journal.
    pub consumer: Option<Arc<str>>,
    /// What ends at or before is not missing.
    pub from: Position,
    /// What comes after is not missing.
    pub to: Position,
    /// Why, as a sentence for a person.
    pub reason: String,
    /// A person has seen it and goes on without.
    pub accepted: bool,
}

/// How much the journal holds, and what of it has to go by its retention, whoever needs it. It goes in whole segments, so that each
/// place is the last position of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub held_bytes: u64,
    pub limit_bytes: u64,
    /// Nothing at or before is held any more; [`Position::START`] where everything is.
    pub oldest: Position,
    /// What stands at or before has to go, by size or by age.
    pub expired: Option<Position>,
    /// What stands at or before has to go by size alone.
    pub over: Option<Position>,
    /// What would have to go if there were only four fifths of the room.
    pub near: Option<Position>,
}

/// The journal as its readers share it.
pub trait Journal: Send + Sync + fmt::Debug {
    fn generation(&self) -> Generation;

    /// End LSN of the last complete transaction or mark that is appended; [`Lsn::ZERO`] where there is none.
    fn appended(&self) -> Lsn;

    /// End LSN of the last complete transaction or mark that a crash of the machine would leave.
    fn durable(&self) -> Lsn;

    /// Asks for an fsync if one is due, and returns the durable end once it is above `lsn`. One fsync serves all who wait.
    fn durable_past(&self, lsn: Lsn) -> BoxFuture<'_, Result<Lsn>>;

    /// A cursor at the first transaction that is not wholly at or before `after`. Live tail and history are the same call.
    /// `JournalForeign` with the oldest position held, if what comes after `after` was already dropped by retention.
    fn follow(&self, after: Position) -> Result<Box<dyn Follower>>;

    /// How much it holds, and what of it has to go.
    fn room(&self, now: Timestamp) -> Room;

    /// Everything at or before `position` is no longer needed by any consumer, or is on record as left out for it: what has to
    /// go of it goes.
    fn release(&self, position: Position, now: Timestamp) -> Result<()>;

    /// What is on record as left out, oldest first.
    fn gaps(&self) -> Vec<Gap>;

    /// Puts a gap on record, durably. One that is there already is not put there twice.
    fn record(&self, gap: Gap) -> BoxFuture<'_, Result<()>>;
}

pub trait Follower: Send + fmt::Debug {
    /// Waits until there is more, then fills `batch` (cleared first) with parts in order, about
    /// [`crate::transaction::PART_BYTES_MAX`] bytes at a time. Cancelling loses nothing.
    fn next<'a>(&'a mut self, batch: &'a mut TransactionBatch) -> BoxFuture<'a, Result<()>>;

    /// The RELATION and TYPE messages in force where the last batch begins, if they changed other than by the messages of
    /// earlier batches: after `follow`, and at the head of each segment.
    fn schema(&mut self) -> Option<SchemaBlock>;

    /// The generation that the parts of the last batch belong to: a batch never spans two.
    fn generation(&self) -> Generation;
}

/// How far each consumer is, on the local disk.
pub trait PositionStore: Send + Sync + fmt::Debug {
    /// The saved position, if there is one.
    fn load(&self, consumer: &str) -> Result<Option<Position>>;

    /// Saves all at once, durably. A position lost in a crash costs repeats, nothing else.
    fn save<'a>(&'a self, positions: &'a [(Arc<str>, Position)]) -> BoxFuture<'a, Result<()>>;
}

// ---- transactions before their outcome -------------------------------------------------------------------------

/// A prepared transaction, as the server announced it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its top-level transaction id, which no other has until it is committed or rolled back.
    pub xid: u32,
    /// The name that the application gave it.
    pub gid: String,
    /// LSN of the prepare record.
    pub prepare_lsn: Lsn,
    /// First byte after the prepare record.
    pub end_lsn: Lsn,
}

/// A transaction in the staging area, by its top-level transaction id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staged {
    /// Still in progress.
    Open(u32),
    /// Prepared; also once its verdict has come.
    Prepared(u32),
}

/// The staging area: what came of transactions before their outcome, on the local disk. Each is a sequence of blocks of
/// [`crate::transaction::push_message`]; a *place* says where one begins, 0 for the first.
///
/// The calls write to the page cache and do not wait for the disk, but for `prepare` and `finish`. Errors are `Disk`, and
/// `JournalCorrupt` for what reads back other than it was written.
pub trait Staging: Send + fmt::Debug {
    /// After the start, and after a lost connection: drops all that is still in progress, and takes back each verdict that ends
    /// above `journal_end`, since it will come again.
    fn restart(&mut self, journal_end: Lsn) -> Result<()>;

    /// Adds a block to a transaction in progress, which begins with its first. Returns the place behind it.
    fn append(&mut self, xid: u32, block: &[u8]) -> Result<u64>;

    /// Removes the block at `place` and all after it from a transaction in progress.
    fn cut(&mut self, xid: u32, place: u64) -> Result<()>;

    /// Puts the block at `place` into `block` and returns the place behind it; `None` at the end.
    fn read(&mut self, staged: Staged, place: u64, block: &mut Vec<u8>) -> Result<Option<u64>>;

    /// Drops a transaction in progress, if it is there.
    fn discard(&mut self, xid: u32) -> Result<()>;

    /// Makes what is in progress under this id a prepared transaction, durably, in the place of one that is there already.
    fn prepare(&mut self, prepared: &Prepared) -> Result<()>;

    /// A prepared transaction that still waits for its verdict.
    fn prepared(&self, xid: u32) -> Option<Prepared>;

    /// All that still wait for their verdict.
    fn waiting(&self) -> Vec<Prepared>;

    /// The verdict has come, and its record ends at `end_lsn`; durable when this returns. The blocks can be read until the release.
    fn finish(&mut self, xid: u32, end_lsn: Lsn) -> Result<()>;

    /// Drops each prepared transaction whose verdict ends at or below `durable_end`. Says whether others with a verdict are left.
    fn release(&mut self, durable_end: Lsn) -> Result<bool>;

    /// The transactions in progress take as much room as they may.
    fn is_full(&self) -> bool;

    /// What waits for its outcome.
    fn amount(&self) -> StagedAmount;
}

/// How much waits for its outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StagedAmount {
    /// Transactions in progress.
    pub in_progress: usize,
    /// Prepared transactions without a verdict.
    pub prepared: usize,
    /// Bytes of both.
    pub bytes: u64,
}

// ---- the primary, on ordinary connections --------------------------------------------------------------------

/// The few things the primary is asked while idle.
pub trait Primary: Send + Sync + fmt::Debug {
    /// Writes a heartbeat: a transactional logical message, and with it what our executor says of itself. Returns the LSN after which the stream
    /// must show both.
    fn beat(&self, presence: Option<Presence>) -> BoxFuture<'_, Result<Lsn>>;

    /// Health of the slot, from `pg_replication_slots`.
    fn slot(&self) -> BoxFuture<'_, Result<SlotHealth>>;

    /// What a session that looks now can see. A commit can be in the log before that (case P-18).
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHealth {
    pub active: bool,
    pub confirmed: Lsn,
    /// Bytes of log the server keeps because of this slot.
    pub retained_bytes: u64,
    /// Bytes that may still be written before the slot is in danger; `None`: no limit is set.
    pub safe_bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: String,
}

/// So many claims may be on their way at once, and so many checkpoints.
pub const STATEMENTS_AT_ONCE_MAX: usize = 2;

/// The work table. Every writing statement is guarded by the fence. Rows locked by others are skipped: they have no reply; a
/// missing reply means that the guard did not hold or that the row was locked: read it. A row that holds what we cannot read is
/// left out of every answer, and reported where it is read.
pub trait WorkTable: Send + Sync + fmt::Debug {
    /// Claims rows in one statement: key, stage, seen fence, state `PENDING` or `RETRY` (or, with `take_over`, `RUNNING`
    /// without a lease, with one that has run out by the server's clock, or with an owner in `dead`), attempts below the limit,
    /// due. A take-over of a row at its limit makes it `UNKNOWN` instead, and a refused row is parked. A claim
    /// gives a row without a definition the one that is named. Waits for no row but one that is taken in the very moment, and for
    /// that half a second for each of its locks; up to [`STATEMENTS_AT_ONCE_MAX`] calls at once do not wait for each other.
    fn claim<'a>(
        &'a self,
        owner: OwnerId,
        requests: &'a [ClaimRequest],
        dead: &'a [OwnerId],
    ) -> BoxFuture<'a, Result<Vec<ClaimReply>>>;

    /// Writes outcomes in one statement, each guarded by key, stage, claimed fence, owner and `RUNNING`. Waits as
    /// [`WorkTable::claim`] does.
    fn checkpoint<'a>(
        &'a self,
        owner: OwnerId,
        checkpoints: &'a [Checkpoint],
    ) -> BoxFuture<'a, Result<Vec<CheckpointReply>>>;

    /// Reads rows by key, closed ones too, in a snapshot of their own.
    fn read<'a>(&'a self, keys: &'a [WorkKey]) -> BoxFuture<'a, Result<Reading>>;

    /// Starts to read all open rows in one snapshot.
    fn open_rows(&self) -> BoxFuture<'_, Result<Box<dyn OpenRows>>>;

    /// The executors that hold their advisory lock now. `None` where that says nothing: the server or our own connection is
    /// new, and the others may still be reconnecting.
    fn living_owners(&self) -> BoxFuture<'_, Result<Option<BTreeSet<OwnerId>>>>;

    /// Drops from one stretch of the history what belongs to workflows that ended longer ago than `retention`. A table that keeps
    /// none has no stretches.
    fn purge_history(&self, _retention: Duration, _stretch: u64) -> BoxFuture<'_, Result<Purged>> {
        Box::pin(async { Ok(Purged::default()) })
    }
}

/// What one stretch of the history has lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    pub rows: u64,
    /// How many stretches there are, counted from 0.
    pub stretches: u64,
}

/// Rows and the snapshot they were read in.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    pub rows: Vec<WorkVersion>,
    pub snapshot: Snapshot,
}

pub trait OpenRows: Send + fmt::Debug {
    fn snapshot(&self) -> &Snapshot;

    /// What people hold back, in the same snapshot.
    fn pauses(&self) -> &[Paused];

    /// The next rows in key order; none at the end.
    fn next_page(&mut self) -> BoxFuture<'_, Result<Vec<WorkVersion>>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    pub key: WorkKey,
    pub stage: StageName,
    pub seen_fence: i64,
    pub attempt_limit: u32,
    pub lease: Duration,
    /// The row was seen `RUNNING` under another owner.
    pub take_over: bool,
    /// What a row without a definition gets.
    pub definition: DefinitionName,
    /// The row is not to be started: it is parked for this reason instead, whenever it is due.
    pub refusal: Option<String>,
    /// The attempt whose end nobody wrote, since somebody else wrote the row: the history is told of it with the claim, or when the row is
    /// parked.
    pub untold: Option<Untold>,
}

/// An attempt under the fence that the row still has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untold {
    /// Its own; the row may be in another by now.
    pub stage: StageName,
    /// When it was claimed, by the server's clock; none: it is not known any more.
    pub claimed_at: Option<Timestamp>,
    /// What became of it.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimReply {
    Claimed(Claim),
    /// A take-over found the attempts used up: the row is `UNKNOWN` now, reason `AT_LIMIT`.
    AtLimit {
        key: WorkKey,
        fence: i64,
    },
    /// The row was refused, and is `NON_RESUMABLE` now.
    Parked {
        key: WorkKey,
        fence: i64,
    },
}

/// A row that is ours until the lease ends, with what the request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub key: WorkKey,
    pub stage: StageName,
    /// The fence this claim wrote.
    pub fence: i64,
    /// The attempt this claim counted, from 1.
    pub attempt: u32,
    pub deferrals: u32,
    pub epoch: u32,
    /// The workflow's definition, if the row has one.
    pub definition: Option<DefinitionName>,
    /// The payload's text as the server renders it; `null` where the column is NULL.
    pub payload: Arc<str>,
    /// A request for this stage and epoch may have left before.
    pub was_sent: bool,
    /// Since when, where that is longer than the receiver keeps the key, as the server writes times.
    pub key_expired: Option<String>,
    /// The payload's hash differs from the one written at the first attempt of this stage and epoch.
    pub payload_changed: bool,
    /// The version that it wrote, where the table tells versions apart.
    pub version: Option<RowVersion>,
}

/// Which version of a row that is: two are never the same. The table that gave it understands it, and nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowVersion {
    /// The transaction that wrote it.
    pub xid: u32,
    /// Where in the table it lies: page, and place on the page.
    pub place: (u32, u16),
    pub written_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub key: WorkKey,
    pub stage: StageName,
    /// The fence the claim wrote.
    pub fence: i64,
    /// The HTTP status that was answered, if one was: for the history alone.
    pub status: Option<u16>,
    pub transition: Transition,
    /// The claim that this is the end of, where it is still known: while the row is the version that the claim wrote, nothing of it need be read.
    pub claim: Option<Arc<Claim>>,
    /// The attempt that it ends, where somebody else has put the row into another stage since.
    pub untold: Option<Untold>,
}

/// What a checkpoint writes. Times are spans after the server's `now()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Success: the next stage, `PENDING`, with a budget of its own.
    Advance { next: StageName },
    /// Success, and the next stage is claimed in the same statement: `RUNNING`, fence + 1, attempt 1, a new lease.
    Chain { next: StageName, lease: Duration },
    /// Success of the last stage: `DONE`, closed.
    Finish,
    /// `RETRY` after a while; the attempt stays used.
    Retry { after: Duration, reason: String },
    /// `RETRY` after a while; the attempt is given back, and `deferral_count` rises where `counted`.
    Defer { after: Duration, reason: String, counted: bool },
    /// `NON_RESUMABLE`: a person must look.
    Park { reason: String },
    /// `UNKNOWN`: nobody knows what the receiver did, and it may not be asked again blindly.
    Unknown { reason: String },
    /// The claim is given back unsent: `PENDING`, the attempt given back. After the first attempt (no deferral) the payload's
    /// hash is forgotten, too: nothing was sent under it, so the payload may still be changed.
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointReply {
    Written { key: WorkKey },
    Chained(Claim),
}

impl CheckpointReply {
    /// The row that it is about.
    pub fn key(&self) -> &WorkKey {
        match self {
            CheckpointReply::Written { key } => key,
            CheckpointReply::Chained(claim) => &claim.key,
        }
    }
}

// ---- what leaves the building ---------------------------------------------------------------------------------

/// One request to a stage's endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageCall {
    pub stage: StageName,
    /// Value of `Idempotency-Key` without its quotes.
    pub idempotency_key: String,
    pub attempt: u32,
    pub fence: i64,
    pub definition: DefinitionName,
    /// Which workflow's trace it belongs to, and where in it.
    pub trace: Trace,
    /// When it was made, on the primary's clock.
    pub made_at: Timestamp,
    /// From the start of the request to the last byte of the answer.
    pub timeout: Duration,
    pub body: Bytes,
}

pub trait StageCaller: Send + Sync + fmt::Debug {
    /// Sends the request once and reports what came of it. Never retries, never follows a redirect.
    fn call(&self, call: StageCall) -> BoxFuture<'_, Outcome>;
}

/// A consumer of events.
pub trait Sink: Send + Sync + fmt::Debug {
    /// How far the sink is by the data it keeps, if it keeps a position with them: everything at or before is there. A
    /// logical message shares its position with the change after it, so this is the position before the last event's, and
    /// the sink knows that event again by its id.
    fn position(&mut self) -> BoxFuture<'_, Result<Option<Position>>>;

    /// Writes events in order; those of one key in order, each settled before the next.
    fn write<'a>(&'a mut self, events: &'a [Event]) -> BoxFuture<'a, Written>;
}

/// How far a write came.
#[derive(Debug)]
pub struct Written {
    /// So many events from the front are settled: durable at the sink. Later ones may be too.
    pub settled: usize,
    /// Why the rest is not.
    pub error: Option<Error>,
}
