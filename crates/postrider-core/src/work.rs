//! Work rows: their keys, their states, and the versions of them that the log or a read shows.

use crate::time::Timestamp;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The key of a work row: the texts of its key columns in the order of the mapping (`group_id`, `quote_id`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkKey(Arc<[Box<str>]>);

impl WorkKey {
    pub fn new<I: IntoIterator<Item = S>, S: Into<Box<str>>>(parts: I) -> WorkKey {
        WorkKey(parts.into_iter().map(Into::into).collect())
    }

    /// The texts of the key columns.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}

/// The name of a stage, as the row's `stage` column has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageName(Arc<str>);

impl StageName {
    pub fn new(name: &str) -> StageName {
        StageName(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The `stage_state` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StageState {
    Pending,
    Running,
    Retry,
    Waiting,
    Unknown,
    Compensating,
    NonResumable,
    Done,
    Cancelled,
    Compensated,
    CompensationStuck,
}

impl StageState {
    pub const ALL: [StageState; 11] = [
        StageState::Pending,
        StageState::Running,
        StageState::Retry,
        StageState::Waiting,
        StageState::Unknown,
        StageState::Compensating,
        StageState::NonResumable,
        StageState::Done,
        StageState::Cancelled,
        StageState::Compensated,
        StageState::CompensationStuck,
    ];

    /// The word in the column.
    pub fn as_str(self) -> &'static str {
        match self {
            StageState::Pending => "PENDING",
            StageState::Running => "RUNNING",
            StageState::Retry => "RETRY",
            StageState::Waiting => "WAITING",
            StageState::Unknown => "UNKNOWN",
            StageState::Compensating => "COMPENSATING",
            StageState::NonResumable => "NON_RESUMABLE",
            StageState::Done => "DONE",
            StageState::Cancelled => "CANCELLED",
            StageState::Compensated => "COMPENSATED",
            StageState::CompensationStuck => "COMPENSATION_STUCK",
        }
    }
}

/// A word that names no stage state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownState;

impl fmt::Display for UnknownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a stage state")
    }
}

impl std::error::Error for UnknownState {}

impl FromStr for StageState {
    type Err = UnknownState;

    fn from_str(word: &str) -> Result<Self, UnknownState> {
        StageState::ALL.into_iter().find(|state| state.as_str() == word).ok_or(UnknownState)
    }
}

/// An executor's identity: random at each process start, so that a process that wakes up late is never taken for its
/// successor. It is the key of the session advisory lock that says "alive", and 16 hexadecimal digits in `lease_owner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u64);

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for OwnerId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(OwnerId)
    }
}

/// What one version of a work row says, without its payload.
///
/// `fence` orders the versions of a row, but for a claim and its outcome, which share one: of two versions with the same
/// fence the later in the log is the later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkVersion {
    pub key: WorkKey,
    pub stage: StageName,
    pub state: StageState,
    pub attempt_count: u32,
    pub deferral_count: u32,
    pub fence: i64,
    pub epoch: u32,
    pub next_attempt_at: Option<Timestamp>,
    pub lease_until: Option<Timestamp>,
    /// The owner's text; a word that is no [`OwnerId`] is somebody else's.
    pub lease_owner: Option<OwnerId>,
    /// `closed_at` is set: no transition will follow.
    pub closed: bool,
}
