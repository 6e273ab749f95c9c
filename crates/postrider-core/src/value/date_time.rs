//! Dates and times in ISO style, in the server's whole range: years BC, years of more than four digits, 24:00, infinity.

use std::fmt;
use std::num::Saturating;

/// From midnight to midnight.
const DAY_MICROS: i64 = 86_400_000_000;
/// 2000-01-01 as a Julian day: the server counts from there.
const EPOCH_JULIAN_DAY: i64 = 2_451_545;

/// A value, or beyond all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extended<T> {
    NegativeInfinity,
    Finite(T),
    Infinity,
}

/// Days since 2000-01-01 in the Gregorian calendar, also where it was not in use yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub Extended<i32>);

/// Microseconds since midnight, up to and with 24:00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay(pub i64);

/// A time of day at an offset of so many seconds east of Greenwich.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZonedTime {
    pub time: TimeOfDay,
    pub offset_seconds: i32,
}

/// Microseconds since 2000-01-01 00:00; in UTC where it is a `timestamptz`. From 1970 they would not hold the
/// server's last 29 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DateTime(pub Extended<i64>);

impl<T> Extended<T> {
    /// Reads `infinity` and `-infinity`, or what else the text is by `finite`.
    pub(super) fn parse(text: &str, finite: impl FnOnce(&str) -> Option<T>) -> Option<Extended<T>> {
        match text {
            "infinity" => Some(Extended::Infinity),
            "-infinity" => Some(Extended::NegativeInfinity),
            _ => finite(text).map(Extended::Finite),
        }
    }

    /// The word for what is not finite.
    pub(super) fn finite(&self) -> Result<&T, &'static str> {
        match self {
            Extended::NegativeInfinity => Err("-infinity"),
            Extended::Infinity => Err("infinity"),
            Extended::Finite(value) => Ok(value),
        }
    }
}

impl Date {
    /// Reads `2024-02-29`, `0044-03-15 BC`, `5874897-12-31`, `infinity`.
    pub fn parse(text: &str) -> Option<Date> {
        let finite = |text: &str| {
            let (text, before_christ) = split_era(text);
            i32::try_from(days(text, before_christ)?).ok()
        };
        Extended::parse(text, finite).map(Date)
    }
}

impl TimeOfDay {
    /// Reads `04:05:06.789`, `24:00:00`.
    pub fn parse(text: &str) -> Option<TimeOfDay> {
        clock_micros(text).map(TimeOfDay)
    }
}

impl ZonedTime {
    /// Reads `04:05:06.789+05:30`, `24:00:00-15:59:59`.
    pub fn parse(text: &str) -> Option<ZonedTime> {
        let (clock, offset_seconds) = split_offset(text)?;
        Some(ZonedTime { time: TimeOfDay(clock_micros(clock)?), offset_seconds })
    }
}

impl DateTime {
    /// Reads a `timestamp`: `2024-02-03 04:05:06.789`, years as in [`Date`], ` BC` at the end, `infinity`.
    pub fn parse(text: &str) -> Option<DateTime> {
        let finite = |text: &str| {
            let (text, before_christ) = split_era(text);
            let (date, clock) = text.split_once(' ')?;
            instant(days(date, before_christ)?, clock, 0)
        };
        Extended::parse(text, finite).map(DateTime)
    }

    /// Reads a `timestamptz`: a `timestamp` with an offset, with minutes and seconds where it has them.
    pub fn parse_zoned(text: &str) -> Option<DateTime> {
        let finite = |text: &str| {
            let (text, before_christ) = split_era(text);
            let (date, clock) = text.split_once(' ')?;
            let (clock, offset_seconds) = split_offset(clock)?;
            instant(days(date, before_christ)?, clock, offset_seconds)
        };
        Extended::parse(text, finite).map(DateTime)
    }

    /// As ISO 8601 and the server's own JSON have it: `2024-02-03T04:05:06.789`, ` BC` at the end, `infinity`.
    pub(crate) fn to_iso(self, zone: &str) -> String {
        let mut text = String::new();
        match self.write(&mut text, 'T', zone) {
            Ok(()) | Err(fmt::Error) => text,
        }
    }

    /// As the server writes it under the pinned settings.
    pub(super) fn write(&self, out: &mut impl fmt::Write, separator: char, zone: &str) -> fmt::Result {
        let micros = match self.0.finite() {
            Ok(micros) => *micros,
            Err(word) => return out.write_str(word),
        };
        let (date, before_christ) = civil(micros.div_euclid(DAY_MICROS));
        write!(out, "{date}{separator}{}{zone}", TimeOfDay(micros.rem_euclid(DAY_MICROS)))?;
        out.write_str(if before_christ { " BC" } else { "" })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.finite() {
            Err(word) => f.write_str(word),
            Ok(days) => {
                let (date, before_christ) = civil(i64::from(*days));
                write!(f, "{date}{}", if before_christ { " BC" } else { "" })
            }
        }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000;
        write!(f, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        write_fraction(f, self.0 % 1_000_000)
    }
}

impl fmt::Display for ZonedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.offset_seconds.unsigned_abs();
        write!(f, "{}{}{:02}", self.time, if self.offset_seconds < 0 { '-' } else { '+' }, seconds / 3600)?;
        let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
        match (minutes, seconds) {
            (0, 0) => Ok(()),
            (_, 0) => write!(f, ":{minutes:02}"),
            _ => write!(f, ":{minutes:02}:{seconds:02}"),
        }
    }
}

/// Writes the digits behind the point, without zeros at the end.
pub(super) fn write_fraction(f: &mut fmt::Formatter<'_>, micros: i64) -> fmt::Result {
    if micros == 0 {
        return Ok(());
    }
    write!(f, ".{}", format!("{micros:06}").trim_end_matches('0'))
}

/// `hh:mm:ss` with up to six digits behind the point, up to and with 24:00.
fn clock_micros(text: &str) -> Option<i64> {
    let (clock, fraction) = split_fraction(text)?;
    let mut fields = clock.split(':');
    let (hours, minutes, seconds) =
        (number(fields.next()?, 2)?, number(fields.next()?, 2)?, number(fields.next()?, 2)?);
    if fields.next().is_some() || minutes > 59 || seconds > 59 {
        return None;
    }
    let micros = micros_of(hours, minutes, seconds)?.checked_add(fraction)?;
    (micros <= DAY_MICROS).then_some(micros)
}

/// So many hours, minutes and seconds.
pub(super) fn micros_of(hours: i64, minutes: i64, seconds: i64) -> Option<i64> {
    let seconds = hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)?;
    seconds.checked_mul(1_000_000)
}

/// What stands before the point, and the digits behind it as microseconds.
pub(super) fn split_fraction(text: &str) -> Option<(&str, i64)> {
    let Some((whole, fraction)) = text.split_once('.') else { return Some((text, 0)) };
    let missing = 6_usize.checked_sub(fraction.len())?;
    let unit = 10_i64.checked_pow(u32::try_from(missing).ok()?)?;
    Some((whole, number(fraction, fraction.len())?.checked_mul(unit)?))
}

/// Exactly so many digits, and at least one.
pub(super) fn number(digits: &str, length: usize) -> Option<i64> {
    let plain = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// `+hh`, `-hh:mm` or `+hh:mm:ss` at the end, in seconds.
fn split_offset(text: &str) -> Option<(&str, i32)> {
    let (clock, offset) = text.split_at_checked(text.find(['+', '-'])?)?;
    let mut seconds = 0_i64;
    let mut unit = 3600_i64;
    for field in offset.get(1..)?.split(':') {
        if unit == 0 {
            return None;
        }
        seconds = number(field, 2)?.checked_mul(unit)?.checked_add(seconds)?;
        unit /= 60;
    }
    let seconds = i32::try_from(seconds).ok()?;
    Some((clock, if offset.starts_with('-') { seconds.checked_neg()? } else { seconds }))
}

fn split_era(text: &str) -> (&str, bool) {
    match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    }
}

fn instant(days: i64, clock: &str, offset_seconds: i32) -> Option<i64> {
    let clock = clock_micros(clock).filter(|micros| *micros < DAY_MICROS)?;
    let offset = i64::from(offset_seconds).checked_mul(1_000_000)?;
    // Near the ends of the range the day alone can be beyond it.
    let micros = i128::from(days).checked_mul(i128::from(DAY_MICROS))?.checked_add(i128::from(clock))?;
    i64::try_from(micros.checked_sub(i128::from(offset))?).ok()
}

/// `yyyy-mm-dd` as days since 2000-01-01, where there is such a day.
fn days(text: &str, before_christ: bool) -> Option<i64> {
    let mut fields = text.split('-');
    let (year, month, day) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || !(4..=7).contains(&year.len()) {
        return None;
    }
    let (year, month, day) = (number(year, year.len())?, number(month, 2)?, number(day, 2)?);
    // The year before 1 AD is 1 BC: astronomers' year 0.
    let year = if before_christ { 1_i64.checked_sub(year)? } else { year };
    // The first year that the server has; the arithmetic is for years after it.
    if year < -4713 || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    (civil_from_days(days) == (year, month, day)).then_some(days)
}

/// `date2j` of the server.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = (Saturating(year), Saturating(month));
    let (year, month) = if month.0 > 2 {
        (year + Saturating(4800), month + Saturating(1))
    } else {
        (year + Saturating(4799), month + Saturating(13))
    };
    let century = Saturating(year.0 / 100);
    let leap_days = Saturating(year.0 / 4) - century + Saturating(century.0 / 4);
    let month_days = Saturating((Saturating(7834) * month).0 / 256);
    let julian = year * Saturating(365) - Saturating(32_167) + leap_days + month_days + Saturating(day);
    (julian - Saturating(EPOCH_JULIAN_DAY)).0
}

/// `j2date` of the server: year, month and day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let julian = Saturating(days) + Saturating(EPOCH_JULIAN_DAY) + Saturating(32_044);
    let quad = Saturating(julian.0 / 146_097);
    let extra = (julian - quad * Saturating(146_097)) * Saturating(4) + Saturating(3);
    let julian = julian + Saturating(60) + quad * Saturating(3) + Saturating(extra.0 / 146_097);
    let quad = Saturating(julian.0 / 1461);
    let julian = julian - quad * Saturating(1461);
    let year = Saturating((julian * Saturating(4)).0 / 1461);
    let day_of_year = if year.0 == 0 { (julian + Saturating(306)).0 % 366 } else { (julian + Saturating(305)).0 % 365 };
    let julian = Saturating(day_of_year) + Saturating(123);
    let year = year + quad * Saturating(4) - Saturating(4800);
    let quad = Saturating((julian * Saturating(2141)).0 / 65_536);
    let day = julian - Saturating((Saturating(7834) * quad).0 / 256);
    let month = Saturating((quad + Saturating(10)).0 % 12) + Saturating(1);
    (year.0, month.0, day.0)
}

/// `yyyy-mm-dd`, and whether it is before Christ.
fn civil(days: i64) -> (String, bool) {
    let (year, month, day) = civil_from_days(days);
    let before_christ = year <= 0;
    let year = if before_christ { 1_i64.saturating_sub(year) } else { year };
    (format!("{year:04}-{month:02}-{day:02}"), before_christ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_date_is_written_as_it_was_read() {
        for text in [
            "2000-01-01",
            "1999-12-31",
            "2024-02-29",
            "0001-01-01",
            "0001-12-31 BC",
            "0044-03-15 BC",
            "4713-01-01 BC",
            "5874897-12-31",
            "15000-12-31",
            "infinity",
            "-infinity",
        ] {
            assert_eq!(Date::parse(text).map(|date| date.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Date::parse("2000-01-01"), Some(Date(Extended::Finite(0))));
        assert_eq!(Date::parse("2000-03-01"), Some(Date(Extended::Finite(60))));
        for text in ["", "2023-02-29", "2024-00-01", "2024-04-31", "2024-1-01", "99999999-01-01", "x", "-2024-01-01"] {
            assert_eq!(Date::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_keep_24_00_and_their_offset() {
        for text in ["00:00:00", "24:00:00", "04:05:06.789", "23:59:59.999999", "00:00:00.000001"] {
            assert_eq!(TimeOfDay::parse(text).map(|time| time.to_string()).as_deref(), Some(text));
        }
        for text in ["24:00:00+00", "04:05:06+05:30", "00:00:00-15:59:59", "04:05:06.5-08"] {
            assert_eq!(ZonedTime::parse(text).map(|time| time.to_string()).as_deref(), Some(text));
        }
        for text in ["", "24:00:01", "25:00:00", "04:60:00", "04:05", "04:05:06.", "04:05:06.1234567", "04:05:06+00"] {
            assert_eq!(TimeOfDay::parse(text), None, "{text}");
        }
    }

    #[test]
    fn timestamps_reach_the_ends_of_the_server() {
        for text in [
            "2000-01-01 00:00:00",
            "0001-12-31 23:40:28 BC",
            "294276-12-31 23:59:59.999999",
            "4714-11-24 00:00:00 BC",
            "1999-12-31 23:59:59.999999",
            "infinity",
            "-infinity",
        ] {
            let read = DateTime::parse(text).unwrap();
            let mut written = String::new();
            read.write(&mut written, ' ', "").unwrap();
            assert_eq!(written, text);
        }
        assert_eq!(DateTime::parse_zoned("2000-01-01 05:30:00+05:30"), Some(DateTime(Extended::Finite(0))));
        assert_eq!(DateTime::parse("0044-03-15 12:00:00 BC").unwrap().to_iso("+00:00"), "0044-03-15T12:00:00+00:00 BC");
        assert_eq!(DateTime::parse("2000-01-01 24:00:00"), None);
        assert_eq!(DateTime::parse("5874897-12-31 00:00:00"), None);
    }
}
