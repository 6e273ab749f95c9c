//! Intervals in the style `postgres`: `1 year 2 mons -3 days +04:05:06.789`.

use super::date_time::{Extended, micros_of, number, split_fraction, write_fraction};
use std::fmt;

/// Months, days and time apart, as the server keeps them: none can be turned into another without a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

/// An interval; infinite ones exist from PostgreSQL 17 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval(pub Extended<Span>);

impl Interval {
    /// Reads what `interval_out` writes.
    pub fn parse(text: &str) -> Option<Interval> {
        Extended::parse(text, span).map(Interval)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = match self.0.finite() {
            Ok(span) => span,
            Err(word) => return f.write_str(word),
        };
        let parts = [(span.months / 12, "year"), (span.months % 12, "mon"), (span.days, "day")];
        let mut space = "";
        // A sign says itself after a negative part, as the server has it.
        let mut plus = "";
        for (amount, unit) in parts.into_iter().filter(|(amount, _)| *amount != 0) {
            let sign = if amount > 0 { plus } else { "" };
            write!(f, "{space}{sign}{amount} {unit}{}", if amount == 1 { "" } else { "s" })?;
            (space, plus) = (" ", if amount < 0 { "+" } else { "" });
        }
        if span.micros == 0 && !space.is_empty() {
            return Ok(());
        }
        let micros = span.micros.unsigned_abs();
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let sign = if span.micros < 0 { "-" } else { plus };
        write!(f, "{space}{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        write_fraction(f, i64::try_from(fraction).unwrap_or(0))
    }
}

fn span(text: &str) -> Option<Span> {
    let mut words = text.split(' ');
    // The parts come in this order, each at most once; the time is the last.
    let mut units = ["year", "mon", "day"].into_iter();
    let (mut months, mut days, mut micros) = (0_i32, 0_i32, 0_i64);
    while let Some(word) = words.next() {
        if word.contains(':') {
            micros = clock(word)?;
            return words.next().is_none().then_some(Span { months, days, micros });
        }
        let amount: i32 = word.parse().ok()?;
        let named = words.next()?;
        let unit = units.find(|unit| named.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest == "s"))?;
        match unit {
            "year" => months = amount.checked_mul(12)?,
            "mon" => months = months.checked_add(amount)?,
            _ => days = amount,
        }
    }
    Some(Span { months, days, micros })
}

/// `[+-]hh:mm:ss[.ffffff]`; the hours have two digits or more, and the sign is of the whole.
fn clock(word: &str) -> Option<i64> {
    let (negative, word) = match word.strip_prefix('-') {
        Some(word) => (true, word),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    let (whole, fraction) = split_fraction(word)?;
    let mut fields = whole.split(':');
    let (hours, minutes, seconds) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || hours.len() < 2 {
        return None;
    }
    let sign = |amount: i64| if negative { amount.checked_neg() } else { Some(amount) };
    let (minutes, seconds) = (number(minutes, 2)?, number(seconds, 2)?);
    if minutes > 59 || seconds > 59 {
        return None;
    }
    // Each part has the sign before they are added, so that the least value of 64 bits is reached.
    let parts = micros_of(sign(number(hours, hours.len())?)?, sign(minutes)?, sign(seconds)?)?;
    parts.checked_add(sign(fraction)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interval_is_written_as_it_was_read() {
        for (text, months, days, micros) in [
            ("1 year 2 mons -3 days +04:05:06.789", 14, -3, 14_706_789_000),
            ("1 mon -1 days", 1, -1, 0),
            ("178 years", 2136, 0, 0),
            ("00:00:00", 0, 0, 0),
            ("-00:00:00.5", 0, 0, -500_000),
            ("-1 years -2 mons +3 days", -14, 3, 0),
            ("1 day -00:00:01", 0, 1, -1_000_000),
            ("-178956970 years -8 mons", i32::MIN, 0, 0),
            ("2562047788:00:54.775807", 0, 0, i64::MAX),
            ("-2562047788:00:54.775808", 0, 0, i64::MIN),
        ] {
            let read = Interval::parse(text);
            assert_eq!(read, Some(Interval(Extended::Finite(Span { months, days, micros }))), "{text}");
            assert_eq!(read.map(|interval| interval.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Interval::parse("-infinity"), Some(Interval(Extended::NegativeInfinity)));
    }

    #[test]
    fn what_is_no_interval_is_refused() {
        for text in [
            "",
            " ",
            "1",
            "1 day ",
            "1 days 1 mons",
            "1 day 2 days",
            "1 week",
            "days",
            "1:00:00",
            "01:00",
            "01:60:00",
            "01:00:00 1 day",
            "01:00:00.",
            "--01:00:00",
            "99999999999 days",
            "9999999999999:00:00",
            "P1D",
            "1 dayss",
        ] {
            assert_eq!(Interval::parse(text), None, "{text}");
        }
    }
}
