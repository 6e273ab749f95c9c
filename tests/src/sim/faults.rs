//! What can go wrong, where, and how often it did.

use std::collections::BTreeMap;
use std::time::Duration;

/// A named list of things that are counted.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($variant),* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }
    };
}

counted! {
    /// Every place where the engine waits for a port.
    Point {
        Sleep = "world.sleep",
        LogOpen = "log.open",
        LogRead = "log.read",
        LogFinish = "log.finish",
        JournalDurable = "journal.durable_past",
        JournalFollow = "journal.follower",
        PositionsSave = "positions.save",
        PrimaryBeat = "primary.beat",
        PrimarySlot = "primary.slot",
        PrimarySnapshot = "primary.snapshot",
        WorkClaim = "work.claim",
        WorkCheckpoint = "work.checkpoint",
        WorkRead = "work.read",
        WorkOpenRows = "work.open_rows",
        WorkNextPage = "work.next_page",
        WorkOwners = "work.living_owners",
        StageCall = "stage.call",
        SinkPosition = "sink.position",
        SinkWrite = "sink.write",
    }
}

counted! {
    /// Before what is asked for is done, or after it was done and before it is known.
    Side { Dispatch = "dispatch", Completion = "completion" }
}

counted! {
    /// Every kind of trouble.
    Fault {
        Kill = "process killed",
        PowerLoss = "machine without power",
        Freeze = "process stopped for longer than a lease",
        Terminate = "process asked to end",
        Outage = "server restarted",
        OwnerLockLost = "owner lock lost by a living process",
        StatementNotSent = "statement not sent",
        StatementReplyLost = "statement committed, reply lost",
        StatementLate = "statement committed after its connection was lost",
        StatementTransient = "statement to be sent again",
        LateVisible = "commit in the log before it is visible",
        RowLocked = "guarded row locked by another transaction",
        StreamCut = "stream cut between transactions",
        StreamCutWithin = "stream cut within a transaction",
        SlotInUse = "slot in use by the old session",
        CallNotSent = "request not sent",
        CallReplyLost = "effect committed, reply lost",
        CallUnprocessed = "request received, not processed, reply lost",
        CallStalled = "reply later than the time-out, effect committed",
        CallDeferred = "429 or 503 with Retry-After",
        CallFailed = "500 without effect",
        CallSlow = "slow reply",
        CallRefused = "422",
        CallInProgress = "409, same key running",
        CallReplayed = "stored answer given again",
        CallStale = "412, old fence",
        Advanced = "row moved on by its receiver",
        AdvancedLate = "row moved on after its attempt was given up",
        AdvanceStale = "receiver too late to move its row on, work rolled back",
        ExternalLost = "external call sent, outcome unknown",
        SinkUnavailable = "sink unavailable",
        SinkPartial = "sink took a part",
        SinkReplyLost = "sink took all, reply lost",
        SlowSync = "slow fsync",
        Cancelled = "row cancelled by an operator",
        Paused = "stage or endpoint paused by an operator",
        RolledBack = "submission rolled back",
        Streamed = "transaction streamed while in progress",
        SavepointAborted = "savepoint of a streamed transaction rolled back",
        StreamAborted = "streamed transaction rolled back",
        AskedWhole = "stream opened for whole transactions only",
        PreparedCommitted = "prepared transaction committed",
        PreparedRolledBack = "prepared transaction rolled back",
    }
}

/// Something that happens to a process at a certain await.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// Not before this time, in microseconds.
    pub at: u64,
    pub point: Point,
    pub side: Side,
    /// So many passes of the point go by before.
    pub skip: u32,
    pub kind: PlannedKind,
}

#[derive(Debug, Clone, Copy)]
pub enum PlannedKind {
    Kill,
    PowerLoss,
    Freeze(Duration),
}

/// Counts over one seed or many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hits {
    pub passes: BTreeMap<(Point, Side), u64>,
    pub crashes: BTreeMap<(Point, Side), u64>,
    pub freezes: BTreeMap<(Point, Side), u64>,
    pub faults: BTreeMap<Fault, u64>,
    /// What the engine itself counted.
    pub seen: BTreeMap<&'static str, u64>,
}

impl Hits {
    pub fn add(&mut self, other: &Hits) {
        for (mine, theirs) in [
            (&mut self.passes, &other.passes),
            (&mut self.crashes, &other.crashes),
            (&mut self.freezes, &other.freezes),
        ] {
            theirs.iter().for_each(|(at, count)| *mine.entry(*at).or_default() += count);
        }
        other.seen.iter().for_each(|(what, count)| *self.seen.entry(what).or_default() += count);
        other.faults.iter().for_each(|(fault, count)| *self.faults.entry(*fault).or_default() += count);
    }

    /// One line for each await and each kind of fault, and how many were never hit.
    pub fn table(&self) -> (String, usize) {
        let mut text = format!("{:<24}{:<12}{:>12}{:>10}{:>10}\n", "await", "side", "passes", "crashes", "stops");
        let mut missing = 0;
        for point in Point::ALL {
            for side in Side::ALL {
                let count = |map: &BTreeMap<_, u64>| map.get(&(*point, *side)).copied().unwrap_or(0);
                let (passes, crashes, freezes) = (count(&self.passes), count(&self.crashes), count(&self.freezes));
                missing += usize::from(passes == 0) + usize::from(crashes == 0);
                text += &format!("{:<24}{:<12}{passes:>12}{crashes:>10}{freezes:>10}\n", point.as_str(), side.as_str());
            }
        }
        text += &format!("{:<60}{:>8}\n", "fault", "times");
        for fault in Fault::ALL {
            let count = self.faults.get(fault).copied().unwrap_or(0);
            missing += usize::from(count == 0);
            text += &format!("{:<60}{count:>8}\n", fault.as_str());
        }
        text += &format!("{:<60}{:>8}\n", "counted by the engine", "times");
        for (what, count) in &self.seen {
            missing += usize::from(*count == 0);
            text += &format!("{what:<60}{count:>8}\n");
        }
        (text, missing)
    }
}
