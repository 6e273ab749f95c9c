//! Places in a journal as they are typed: a position, a log sequence number, a time, or an end.

use crate::config::Span;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::{Lsn, Position};
use postrider_core::time::Timestamp;
use postrider_core::value;
use postrider_delivery::rfc3339;
use postrider_journal::Reader;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where to begin or to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The oldest transaction held.
    Beginning,
    /// Behind the last transaction.
    End,
    /// A change, by its position as every tool prints it.
    Position(Position),
    /// The transactions whose commit record stands here or later, in the newest generation.
    Lsn(Lsn),
    /// The first transaction, in commit order, that was committed then or later by the server's clock.
    Time(Timestamp),
    /// The same, counted back from now by this machine's clock.
    Ago(Duration),
}

/// Text that is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidPlace;

/// Where to begin, once it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// What comes after this.
    pub(crate) after: Position,
    /// Something between the time that was asked for and the oldest transaction held may be gone.
    pub(crate) earlier_is_gone: bool,
}

/// The last place that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// This position and those before.
    Position(Position),
    /// Everything before the first transaction that was committed later than this.
    Time(Timestamp),
}

impl Place {
    /// Finds the place as a beginning. The place itself comes first.
    pub(crate) fn begin(self, reader: &Reader, now: Timestamp) -> Result<Start> {
        let at = |after| Ok(Start { after, earlier_is_gone: false });
        match self {
            Place::Beginning => at(reader.oldest()),
            Place::End => at(reader.last()),
            Place::Position(position) if position.ordinal == u64::MAX => at(within(position, reader)?),
            Place::Position(position) => at(within(position, reader)?.just_before()),
            Place::Lsn(lsn) => at(within(first_at(lsn, reader), reader)?.just_before()),
            Place::Time(at) => begin_at(at, reader),
            Place::Ago(span) => begin_at(ago(span, now), reader),
        }
    }

    /// What the place means as an end. The place itself is the last.
    pub(crate) fn end(self, reader: &Reader, now: Timestamp) -> Limit {
        match self {
            Place::Beginning => Limit::Position(reader.oldest()),
            Place::End => Limit::Position(reader.last()),
            Place::Position(position) => Limit::Position(position),
            Place::Lsn(lsn) => Limit::Position(Position { ordinal: u64::MAX, ..first_at(lsn, reader) }),
            Place::Time(at) => Limit::Time(at),
            Place::Ago(span) => Limit::Time(ago(span, now)),
        }
    }
}

impl FromStr for Place {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Place, InvalidPlace> {
        match text {
            "beginning" => return Ok(Place::Beginning),
            "end" => return Ok(Place::End),
            _ => {}
        }
        let position = || text.parse().ok().map(Place::Position);
        let lsn = || text.parse().ok().map(Place::Lsn);
        let ago = || text.parse().ok().map(|Span(span)| Place::Ago(span));
        position().or_else(lsn).or_else(ago).or_else(|| time(text).map(Place::Time)).ok_or(InvalidPlace)
    }
}

impl fmt::Display for InvalidPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "write `beginning`, `end`, a position (1:16/B374D848:3), a log sequence number (16/B374D848), a time with its zone \
             (2026-03-01T02:30:00Z), or how long ago (30m)",
        )
    }
}

impl std::error::Error for InvalidPlace {}

/// A time as RFC 3339 has it, also with a space for the `T`, and without seconds. The zone must be there: a time without
/// one is another time for everybody who reads it.
fn time(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at_checked(zone_at)?;
    let seconds = if clock.matches(':').count() == 1 { ":00" } else { "" };
    let zone = if zone.eq_ignore_ascii_case("z") { "+00" } else { zone };
    value::parse_timestamptz(&format!("{date} {clock}{seconds}{zone}"))
}

fn ago(span: Duration, now: Timestamp) -> Timestamp {
    Timestamp(now.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
}

/// The first position of a commit record at `lsn`.
fn first_at(lsn: Lsn, reader: &Reader) -> Position {
    Position { generation: reader.last().generation, commit_lsn: lsn, ordinal: 0 }
}

fn begin_at(at: Timestamp, reader: &Reader) -> Result<Start> {
    let Some(after) = reader.before(at)? else {
        return Err(Error::new(ErrorKind::Configuration, "no transaction in the journal is as young as this time")
            .with_detail(format!("The time is {}; {}", rfc3339(at), ends(reader)))
            .with_hint("`--from end` stands behind all that is there."));
    };
    let is_first = || Ok::<_, Error>(reader.before(Timestamp(i64::MIN))? == Some(after));
    let earlier_is_gone = reader.oldest() != Position::START && is_first()?;
    Ok(Start { after, earlier_is_gone })
}

fn within(position: Position, reader: &Reader) -> Result<Position> {
    let last = reader.last();
    if position.generation > last.generation
        || position.generation == last.generation && position.commit_lsn > reader.end().max(last.commit_lsn)
    {
        return Err(Error::new(ErrorKind::Configuration, "the position lies past the end of the journal")
            .with_detail(format!("The position is {position}; {}", ends(reader)))
            .with_hint(
                "`postrider journal ls` shows from where to where it reaches; `--from end` stands behind all of it.",
            ));
    }
    Ok(position)
}

fn ends(reader: &Reader) -> String {
    format!("the journal ends at {}, and its last transaction is {}.", reader.end(), reader.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::position::Generation;

    #[test]
    fn a_place_is_read_in_each_of_its_forms() {
        let position = Position { generation: Generation(1), commit_lsn: Lsn(0x16_B374_D848), ordinal: 3 };
        for (text, place) in [
            ("beginning", Place::Beginning),
            ("end", Place::End),
            ("1:16/B374D848:3", Place::Position(position)),
            ("1:16/B374D848:end", Place::Position(Position { ordinal: u64::MAX, ..position })),
            ("16/B374D848", Place::Lsn(position.commit_lsn)),
            ("30m", Place::Ago(Duration::from_secs(1800))),
            ("2023-11-14T22:13:20.123456Z", Place::Time(Timestamp(1_700_000_000_123_456))),
            ("2023-11-14 22:13:20+00", Place::Time(Timestamp(1_700_000_000_000_000))),
            ("2023-11-14T23:13+01:00", Place::Time(Timestamp(1_699_999_980_000_000))),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in
            ["", "yesterday", "2023-11-14", "2023-11-14T22:13:20", "22:13Z", "16/", "1:2", "30", "2023-13-14T22:13Z"]
        {
            assert_eq!(text.parse::<Place>(), Err(InvalidPlace), "{text}");
        }
    }
}
