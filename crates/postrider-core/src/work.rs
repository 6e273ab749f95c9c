//! Work rows: their keys, their states, and the versions of them that the log or a read shows.

use crate::time::Timestamp;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The key of a work row: the texts of its key columns in the order of the mapping (`group_id`, `quote_id`).
///
/// It is one allocation, since every open row has its key in memory, and is ordered as its parts are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkKey(Arc<str>);

/// Stands between two parts: no text of PostgreSQL has it, and it comes before every character that one can have.
const BETWEEN: char = '\0';

impl WorkKey {
    /// A part that is no text of PostgreSQL, since it has a NUL, gets a replacement character in its place: no row has that key.
    pub fn new<I: IntoIterator<Item = S>, S: AsRef<str>>(parts: I) -> WorkKey {
        let mut text = String::with_capacity(64);
        for (place, part) in parts.into_iter().enumerate() {
            if place > 0 {
                text.push(BETWEEN);
            }
            match part.as_ref() {
                part if part.contains(BETWEEN) => text.push_str(&part.replace(BETWEEN, "\u{FFFD}")),
                part => text.push_str(part),
            }
        }
        WorkKey(text.into())
    }

    /// The texts of the key columns.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split(BETWEEN)
    }
}

impl fmt::Debug for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkKey").field(&self.parts().collect::<Vec<_>>()).finish()
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

/// The name of a workflow's definition, `name@version`, as the row's `definition` column has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionName(Arc<str>);

impl DefinitionName {
    pub fn new(name: &str) -> DefinitionName {
        DefinitionName(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DefinitionName {
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

    /// No transition follows.
    pub fn is_closed(self) -> bool {
        matches!(self, StageState::Done | StageState::Cancelled | StageState::Compensated)
    }

    /// Our own word for it, in every table that has none of its own.
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

/// The words by which a work table names the states. A state may have several: all of them are read, and the first is written.
/// No word is there twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWords([Words; StageState::ALL.len()]);

/// The words of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Words {
    first: Cow<'static, str>,
    further: Vec<String>,
}

/// A word that two states have, so that nobody could tell which of them a row is in; or that one state has twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SameWord {
    pub word: String,
    pub states: [StageState; 2],
}

impl StateWords {
    /// The table's own words for these states, and ours for the others and for those without any.
    pub fn new(own: &BTreeMap<StageState, Vec<String>>) -> Result<StateWords, SameWord> {
        let words = StageState::ALL.map(|state| match own.get(&state).and_then(|own| own.split_first()) {
            Some((first, further)) => Words { first: Cow::Owned(first.clone()), further: further.to_vec() },
            None => Words::ours(state),
        });
        let mut known = BTreeMap::new();
        for (state, words) in StageState::ALL.into_iter().zip(&words) {
            for word in words.all() {
                if let Some(other) = known.insert(word, state) {
                    return Err(SameWord { word: word.to_owned(), states: [other, state] });
                }
            }
        }
        Ok(StateWords(words))
    }

    /// The word that is written into the column.
    pub fn word(&self, state: StageState) -> &str {
        self.words(state).next().unwrap_or(state.as_str())
    }

    /// All words of the column that stand for a state, first the one that is written.
    pub fn words(&self, state: StageState) -> impl Iterator<Item = &str> {
        let named = StageState::ALL.into_iter().zip(&self.0);
        named.filter(move |(known, _)| *known == state).flat_map(|(_, words)| words.all())
    }

    /// The state that a word of the column stands for.
    pub fn state(&self, word: &str) -> Option<StageState> {
        let mut named = StageState::ALL.into_iter().zip(&self.0);
        named.find(|(_, words)| words.all().any(|known| known == word)).map(|(state, _)| state)
    }
}

impl Words {
    fn ours(state: StageState) -> Words {
        Words { first: Cow::Borrowed(state.as_str()), further: Vec::new() }
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.first).chain(self.further.iter().map(String::as_str))
    }
}

impl Default for StateWords {
    fn default() -> StateWords {
        StateWords(StageState::ALL.map(Words::ours))
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
    /// `None`: the row has not been claimed yet, and gets the definition that is current then.
    pub definition: Option<DefinitionName>,
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
    /// `closed_at` is set, or, in a table without it, the state is a closed one: no transition will follow.
    pub closed: bool,
}

impl WorkVersion {
    /// A row as it is submitted: nobody has claimed it yet.
    pub fn unclaimed(key: WorkKey, stage: &str) -> WorkVersion {
        WorkVersion {
            key,
            definition: None,
            stage: StageName::new(stage),
            state: StageState::Pending,
            attempt_count: 0,
            deferral_count: 0,
            fence: 0,
            epoch: 0,
            next_attempt_at: None,
            lease_until: None,
            lease_owner: None,
            closed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(own: &[(StageState, &[&str])]) -> Result<StateWords, SameWord> {
        let named = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        StateWords::new(&own.iter().map(|(state, words)| (*state, named(words))).collect())
    }

    #[test]
    fn a_part_with_a_nul_never_makes_two_of_itself() {
        let key = WorkKey::new(["a\0b", "c"]);
        assert_eq!(key.parts().collect::<Vec<_>>(), ["a\u{FFFD}b", "c"]);
        assert_eq!(format!("{:?}", WorkKey::new(["g", ""])), r#"WorkKey(["g", ""])"#);
    }

    #[test]
    fn words_are_mapped_both_ways_and_no_two_states_have_the_same() {
        let own = words(&[(StageState::Pending, &["NEW"]), (StageState::Running, &["PENDING"])]);
        let own = own.expect("words of their own");
        for state in StageState::ALL {
            assert_eq!(own.state(own.word(state)), Some(state));
            assert_eq!(StateWords::default().word(state), state.as_str());
        }
        assert_eq!((own.state("PENDING"), own.state("RUNNING")), (Some(StageState::Running), None));
        let same = words(&[(StageState::Running, &["PENDING"])]).expect_err("PENDING is called so already");
        assert_eq!(same, SameWord { word: "PENDING".to_owned(), states: [StageState::Pending, StageState::Running] });
        assert!(words(&[(StageState::Done, &["END"]), (StageState::Cancelled, &["END"])]).is_err());
    }

    #[test]
    fn of_several_words_all_are_read_and_the_first_is_written() {
        let own = words(&[
            (StageState::Pending, &["NEW", "QUEUED"]),
            (StageState::Running, &["BUSY", "PENDING"]),
            (StageState::Done, &[]),
        ]);
        let own = own.expect("words of their own");
        for (state, all) in [
            (StageState::Pending, &["NEW", "QUEUED"][..]),
            (StageState::Running, &["BUSY", "PENDING"]),
            (StageState::Done, &["DONE"]),
        ] {
            assert_eq!((own.word(state), own.words(state).collect::<Vec<_>>()), (all[0], all.to_vec()));
            assert!(all.iter().all(|word| own.state(word) == Some(state)), "{all:?}");
        }
        assert_eq!(own.state("RUNNING"), None);
        let further = words(&[(StageState::Retry, &["AGAIN", "NEW"]), (StageState::Unknown, &["UNCLEAR", "NEW"])]);
        assert_eq!(further, Err(SameWord { word: "NEW".to_owned(), states: [StageState::Retry, StageState::Unknown] }));
        let twice = words(&[(StageState::Retry, &["AGAIN", "AGAIN"])]);
        assert_eq!(twice, Err(SameWord { word: "AGAIN".to_owned(), states: [StageState::Retry, StageState::Retry] }));
    }

    proptest! {
        #[test]
        fn keys_are_as_their_parts_are(
            left in proptest::collection::vec("[\u{1}ab/\u{fffd}]{0,3}", 1..4),
            right in proptest::collection::vec("[\u{1}ab/\u{fffd}]{0,3}", 1..4),
        ) {
            let (left_key, right_key) = (WorkKey::new(&left), WorkKey::new(&right));
            prop_assert_eq!(left_key.parts().collect::<Vec<_>>(), left.iter().collect::<Vec<_>>());
            prop_assert_eq!(left_key.cmp(&right_key), left.cmp(&right));
        }
    }
}
