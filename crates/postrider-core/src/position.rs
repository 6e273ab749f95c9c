//! Where something stands in the log.

use std::fmt;
use std::str::FromStr;

/// A log sequence number: a byte address in the write-ahead log of one timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The address before every other; PostgreSQL writes it `0/0`.
    pub const ZERO: Lsn = Lsn(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// Text that is no log sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidLsn;

impl fmt::Display for InvalidLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a log sequence number (two hexadecimal numbers with a slash between, as in 16/B374D848)")
    }
}

impl std::error::Error for InvalidLsn {}

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let (high, low) = text.split_once('/').ok_or(InvalidLsn)?;
        let part = |digits: &str| {
            if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(InvalidLsn);
            }
            u32::from_str_radix(digits, 16).map_err(|_| InvalidLsn)
        };
        Ok(Lsn(u64::from(part(high)?) << 32 | u64::from(part(low)?)))
    }
}

/// Counts the histories of one slot: it rises when the system identifier or the timeline changes under us, since
/// log sequence numbers are then used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The generation of a new journal.
    pub const FIRST: Generation = Generation(1);
}

/// The place of one change in commit order.
///
/// Ordered by generation, then by the LSN of the commit record, then by the ordinal within the transaction. The ordinal
/// counts inserts, updates, deletes and truncates from 0; logical messages take the ordinal of the next change and do
/// not count, so that switching them on renumbers nothing. The LSN of a row is no position: rows of one
/// `COPY` share one, and rows of interleaved transactions are not monotonic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub generation: Generation,
    pub commit_lsn: Lsn,
    pub ordinal: u64,
}

impl Position {
    /// Before everything of the first generation.
    pub const START: Position = Position { generation: Generation::FIRST, commit_lsn: Lsn::ZERO, ordinal: 0 };

    /// The last position before this one: events at this position are not settled by it.
    #[must_use]
    pub fn just_before(self) -> Position {
        match self.ordinal.checked_sub(1) {
            Some(ordinal) => Position { ordinal, ..self },
            None => Position::whole(self.generation, Lsn(self.commit_lsn.0.saturating_sub(1))),
        }
    }

    /// The position that stands for the whole transaction: after each of its changes, before the next commit.
    pub fn whole(generation: Generation, commit_lsn: Lsn) -> Position {
        Position { generation, commit_lsn, ordinal: u64::MAX }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.generation.0, self.commit_lsn)?;
        if self.ordinal == u64::MAX { f.write_str("end") } else { write!(f, "{}", self.ordinal) }
    }
}

/// Text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPosition;

impl fmt::Display for InvalidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a position (generation, log sequence number and ordinal, as in 1:16/B374D848:3)")
    }
}

impl std::error::Error for InvalidPosition {}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let (generation, rest) = text.split_once(':').ok_or(InvalidPosition)?;
        let (lsn, ordinal) = rest.split_once(':').ok_or(InvalidPosition)?;
        let number = |digits: &str| {
            if !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(InvalidPosition);
            }
            digits.parse::<u64>().map_err(|_| InvalidPosition)
        };
        Ok(Position {
            generation: Generation(u32::try_from(number(generation)?).map_err(|_| InvalidPosition)?),
            commit_lsn: lsn.parse().map_err(|_| InvalidPosition)?,
            ordinal: if ordinal == "end" { u64::MAX } else { number(ordinal)? },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    #[test]
    fn an_lsn_reads_back_what_it_prints() {
        for lsn in [0, 1, 0xFFFF_FFFF, 0x16_B374_D848, u64::MAX] {
            assert_eq!(Lsn(lsn).to_string().parse::<Lsn>(), Ok(Lsn(lsn)));
        }
    }

    #[test]
    fn a_malformed_lsn_is_refused() {
        for text in ["", "/", "0", "0/", "/0", "0/G", "0/123456789", "+1/0", "0/0/0", " 0/0"] {
            assert_eq!(text.parse::<Lsn>(), Err(InvalidLsn), "{text:?}");
        }
    }

    #[test]
    fn a_position_reads_back_what_it_prints() {
        for ordinal in [0, 1, u64::MAX - 1, u64::MAX] {
            let position = Position { generation: Generation(7), commit_lsn: Lsn(0x16_B374_D848), ordinal };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
    }

    #[test]
    fn a_malformed_position_is_refused() {
        for text in
            ["", "1", "1:0/0", ":0/0:0", "1:0/0:", "1::0", "-1:0/0:0", "+1:0/0:0", "1:0/0:End", "4294967296:0/0:0"]
        {
            assert_eq!(text.parse::<Position>(), Err(InvalidPosition), "{text:?}");
        }
    }

    #[test]
    fn a_whole_transaction_stands_after_its_changes_and_before_the_next_commit() {
        let whole = Position::whole(Generation::FIRST, Lsn(10));
        assert!(Position { ordinal: 7, ..whole } < whole);
        assert!(whole < Position { generation: Generation::FIRST, commit_lsn: Lsn(11), ordinal: 0 });
    }
}
