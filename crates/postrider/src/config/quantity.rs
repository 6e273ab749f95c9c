//! Durations and sizes as they are typed: a whole number and a unit, in one word.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time, typed as `"250ms"`, `"30s"`, `"5m"`, `"12h"` or `"14d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

/// A number of bytes, typed as `"512B"`, `"64KiB"`, `"64MiB"`, `"20GiB"` or `"1TiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// A number of times in a second, a minute or an hour, typed as `"100/s"`, `"600/m"` or `"5/h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frequency {
    pub(crate) calls: u32,
    pub(crate) per: Duration,
}

/// Why a word is no quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantityError {
    /// It does not begin with a whole number.
    Number,
    /// The unit is missing or unknown.
    Unit,
    /// `kB`, `MB`, `GB`: powers of 1000 to some, of 1024 to PostgreSQL.
    AmbiguousUnit,
    /// It does not fit into 64 bits.
    TooLarge,
}

const SPAN_UNITS_MS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS_BYTES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(word: &str) -> Result<Self, QuantityError> {
        quantity(word, &SPAN_UNITS_MS).map(|milliseconds| Span(Duration::from_millis(milliseconds)))
    }
}

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(word: &str) -> Result<Self, QuantityError> {
        quantity(word, &SIZE_UNITS_BYTES).map(ByteSize)
    }
}

impl FromStr for Frequency {
    type Err = QuantityError;

    fn from_str(word: &str) -> Result<Self, QuantityError> {
        let (number, unit) = word.split_once('/').ok_or(QuantityError::Unit)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(QuantityError::Unit),
        };
        let calls = quantity(number, &[("", 1)]).map_err(|_| QuantityError::Number)?;
        let calls = u32::try_from(calls).map_err(|_| QuantityError::TooLarge)?;
        Ok(Frequency { calls, per: Duration::from_secs(seconds) })
    }
}

/// Prints the largest unit that loses nothing.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        print(f, milliseconds, &SPAN_UNITS_MS)
    }
}

/// Prints the largest unit that loses nothing.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0, &SIZE_UNITS_BYTES)
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityError::Number => "it does not begin with a whole number",
            QuantityError::Unit => "the unit is missing or unknown",
            QuantityError::AmbiguousUnit => "kB, MB and GB mean 1000 to some and 1024 to others",
            QuantityError::TooLarge => "it is too large",
        })
    }
}

fn quantity(word: &str, units: &[(&str, u64)]) -> Result<u64, QuantityError> {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    if number.is_empty() {
        return Err(QuantityError::Number);
    }
    let known = units.iter().find(|(name, _)| *name == unit);
    let Some((_, factor)) = known else {
        let ambiguous = matches!(unit, "kB" | "KB" | "MB" | "GB" | "TB");
        return Err(if ambiguous { QuantityError::AmbiguousUnit } else { QuantityError::Unit });
    };
    let number: u64 = number.parse().map_err(|_| QuantityError::TooLarge)?;
    number.checked_mul(*factor).ok_or(QuantityError::TooLarge)
}

fn print(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    let whole = units.iter().rev().find(|(_, factor)| amount >= *factor && amount.is_multiple_of(*factor));
    match whole.or(units.first()) {
        Some((unit, factor)) => write!(f, "{}{unit}", amount / factor),
        None => write!(f, "{amount}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reads_back_what_it_prints() {
        for word in ["0ms", "250ms", "30s", "5m", "12h", "14d", "90s"] {
            assert_eq!(word.parse::<Span>().map(|span| span.to_string()), Ok(word.to_owned()));
        }
        assert_eq!("60s".parse::<Span>().map(|span| span.to_string()), Ok("1m".to_owned()));
    }

    #[test]
    fn a_size_reads_back_what_it_prints() {
        for word in ["0B", "512B", "64KiB", "64MiB", "20GiB", "1TiB", "1025B"] {
            assert_eq!(word.parse::<ByteSize>().map(|size| size.to_string()), Ok(word.to_owned()));
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_the_reason() {
        assert_eq!("".parse::<Span>(), Err(QuantityError::Number));
        assert_eq!("-1s".parse::<Span>(), Err(QuantityError::Number));
        assert_eq!("30".parse::<Span>(), Err(QuantityError::Unit));
        assert_eq!("1.5s".parse::<Span>(), Err(QuantityError::Unit));
        assert_eq!("30 s".parse::<Span>(), Err(QuantityError::Unit));
        assert_eq!("213503982335d".parse::<Span>(), Err(QuantityError::TooLarge));
        assert_eq!("64MB".parse::<ByteSize>(), Err(QuantityError::AmbiguousUnit));
        assert_eq!("99999999999999999999B".parse::<ByteSize>(), Err(QuantityError::TooLarge));
        assert_eq!("16777216TiB".parse::<ByteSize>(), Err(QuantityError::TooLarge));
    }
}
