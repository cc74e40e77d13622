//! Slices of time: their length, their start, and their name in kept ids (docs/protocol.md, section
//! 5).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The length of the slices of a series.
///
/// Slices of a fixed length begin at its multiples in Unix time, in any time zone. Days and months
/// begin at local midnight: a day has 23 or 25 hours when the clocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Precision {
    /// This many seconds, up to those of a year.
    Seconds(u32),
    /// A day of the family's time zone.
    Day,
    /// A month of the family's time zone.
    Month,
}

impl Precision {
    /// 1 s.
    pub const SECOND: Precision = Precision::Seconds(1);
    /// 5 s.
    pub const FIVE_SECONDS: Precision = Precision::Seconds(5);
    /// 1 min.
    pub const MINUTE: Precision = Precision::Seconds(60);
    /// 5 min.
    pub const FIVE_MINUTES: Precision = Precision::Seconds(300);
    /// 1 h.
    pub const HOUR: Precision = Precision::Seconds(3600);
    /// 5 h.
    pub const FIVE_HOURS: Precision = Precision::Seconds(18_000);
    /// The default precisions of a series: 1 s, 5 s, 1 min, 5 min, 1 h, 5 h, 1 day.
    pub const DEFAULT: [Precision; 7] = [
        Precision::SECOND,
        Precision::FIVE_SECONDS,
        Precision::MINUTE,
        Precision::FIVE_MINUTES,
        Precision::HOUR,
        Precision::FIVE_HOURS,
        Precision::Day,
    ];
    /// The largest number of seconds of a slice of a fixed length: 365 days.
    pub const MAX_SECONDS: u32 = 31_536_000;
}

impl FromStr for Precision {
    type Err = Error;

    /// Parses the displayed form: `60s`, `day`, `month`.
    fn from_str(name: &str) -> Result<Self> {
        let seconds = name
            .strip_suffix('s')
            .and_then(|digits| digits.parse().ok());
        match (name, seconds) {
            ("day", _) => Ok(Precision::Day),
            ("month", _) => Ok(Precision::Month),
            (_, Some(seconds)) => Ok(Precision::Seconds(seconds)),
            (_, None) => Err(Error::invalid(format!(
                "precision {name:?} is not `60s`, `day` or `month`"
            ))),
        }
    }
}

impl fmt::Display for Precision {
    /// Writes the form of keys and kept ids: `60s`, `day`, `month`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precision::Seconds(seconds) => write!(f, "{seconds}s"),
            Precision::Day => f.write_str("day"),
            Precision::Month => f.write_str("month"),
        }
    }
}

impl TryFrom<String> for Precision {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<Precision> for String {
    fn from(precision: Precision) -> String {
        precision.to_string()
    }
}

/// Returns the whole seconds of Unix time that the range overlaps.
pub fn unix_seconds(range: &Range<SystemTime>) -> Range<i64> {
    const SECOND: i128 = 1_000_000_000;
    // the seconds of a SystemTime fit into an i64
    let start = nanos(range.start).div_euclid(SECOND) as i64;
    let end = -(-nanos(range.end)).div_euclid(SECOND) as i64;
    start..if range.is_empty() { start } else { end }
}

/// Returns the nanoseconds of Unix time.
fn nanos(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    }
}

/// Returns the time at this number of Unix seconds.
pub fn time_at(seconds: i64) -> SystemTime {
    let apart = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        UNIX_EPOCH.checked_sub(apart)
    } else {
        UNIX_EPOCH.checked_add(apart)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Returns an IANA time zone, from the system's database or else from the built-in one.
pub fn time_zone(name: &str) -> Result<TimeZone> {
    let unknown = Error::invalid(format!("time zone {name:?} is not known"));
    match TimeZone::get(name) {
        // jiff takes the name Etc/Unknown for a zone, which would count as UTC
        Ok(zone) if zone.is_unknown() => Err(unknown),
        Ok(zone) => Ok(zone),
        Err(error) => Err(unknown.with_source(error)),
    }
}

/// The time zone in which days and months begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar(TimeZone);

impl Calendar {
    pub fn utc() -> Self {
        Calendar(TimeZone::UTC)
    }

    /// Returns the calendar of an IANA time zone.
    pub fn of(name: &str) -> Result<Self> {
        time_zone(name).map(Calendar)
    }

    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the slice that contains the time, in Unix seconds.
    pub fn slice(&self, precision: Precision, at: i64) -> Result<Range<i64>> {
        match precision {
            Precision::Seconds(seconds) => {
                let length = i64::from(seconds);
                let start = at.div_euclid(length).saturating_mul(length);
                Ok(start..start.saturating_add(length))
            }
            Precision::Day => self.days(at, |date| date, 1.day()),
            Precision::Month => self.days(at, Date::first_of_month, 1.month()),
        }
    }

    /// Returns the starts of `slices` slices, ascending; the last one contains the time.
    pub fn window(&self, precision: Precision, slices: u32, at: i64) -> Result<Vec<i64>> {
        let mut start = self.slice(precision, at)?.start;
        let mut starts = vec![start];
        for _ in 1..slices {
            start = self.slice(precision, start - 1)?.start;
            starts.push(start);
        }
        starts.reverse();
        Ok(starts)
    }

    /// Returns the starts of all slices that overlap the range, ascending, or `None` if there are
    /// more than `most`.
    pub fn starts(
        &self,
        precision: Precision,
        from: i64,
        to: i64,
        most: usize,
    ) -> Result<Option<Vec<i64>>> {
        let mut starts = Vec::new();
        let mut at = from;
        while at < to {
            let slice = self.slice(precision, at)?;
            if starts.len() == most {
                return Ok(None);
            }
            starts.push(slice.start);
            at = slice.end;
        }
        Ok(Some(starts))
    }

    /// Returns the name of the slice in a kept id: its start in Unix seconds, or the date of its
    /// first day.
    pub fn called(&self, precision: Precision, start: i64) -> Result<String> {
        match precision {
            Precision::Seconds(_) => Ok(start.to_string()),
            // a day whose midnight does not exist begins later, but on the same date
            Precision::Day | Precision::Month => Ok(self.date(start)?.to_string()),
        }
    }

    fn date(&self, at: i64) -> Result<Date> {
        let time = Timestamp::from_second(at).map_err(|error| out_of_calendar(at, error))?;
        Ok(self.0.to_datetime(time).date())
    }

    /// Returns the span of days of this length that contains the time. `first_of` returns the first
    /// day of a date's span.
    fn days(&self, at: i64, first_of: impl Fn(Date) -> Date, length: Span) -> Result<Range<i64>> {
        let first = first_of(self.date(at)?);
        self.span(first, length)
            .map_err(|error| out_of_calendar(at, error))
    }

    /// Returns the time from the midnight of a day to the midnight this length later.
    fn span(&self, first: Date, length: Span) -> Result<Range<i64>, jiff::Error> {
        Ok(self.midnight(first)?..self.midnight(first.checked_add(length)?)?)
    }

    fn midnight(&self, date: Date) -> Result<i64, jiff::Error> {
        let midnight = date.to_zoned(self.0.clone())?;
        Ok(midnight.timestamp().as_second())
    }
}

fn out_of_calendar(at: i64, error: jiff::Error) -> Error {
    Error::invalid(format!("{at} s of Unix time is outside the calendar")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2014-03-30 12:00 UTC.
    const SPRING: i64 = 1_396_180_800;

    #[test]
    fn a_day_without_midnight_begins_at_one() {
        // in Beirut clocks went from 00:00 to 01:00 on 2014-03-30
        let beirut = Calendar::of("Asia/Beirut").expect("a zone");
        let day = |at| beirut.slice(Precision::Day, at).expect("a day");
        let spring = day(SPRING);
        assert_eq!((spring.end - spring.start) / 3600, 23);
        let called = beirut.called(Precision::Day, spring.start);
        assert_eq!(called.expect("a date"), "2014-03-30");
        assert_eq!(day(spring.start - 1).end, spring.start);
    }

    #[test]
    fn a_stretch_of_time_is_rounded_to_whole_seconds_that_contain_it() {
        let half = Duration::from_millis(500);
        assert_eq!(unix_seconds(&(time_at(-7)..time_at(SPRING))), -7..SPRING);
        assert_eq!(unix_seconds(&(time_at(7) + half..time_at(8) + half)), 7..9);
        assert_eq!(
            unix_seconds(&(time_at(-7) - half..time_at(-7) + half)),
            -8..-6
        );
        let empty = [0, 1].map(|more| unix_seconds(&(time_at(7 + more) + half..time_at(7) + half)));
        assert!(empty.iter().all(Range::is_empty), "{empty:?}");
    }

    #[test]
    fn before_1970_slices_begin_earlier_too() {
        let minute = |at| {
            let slice = Calendar::utc().slice(Precision::MINUTE, at);
            slice.expect("a slice")
        };
        assert_eq!(minute(-1), -60..0);
        for far in [i64::MIN, i64::MAX] {
            let slice = minute(far);
            assert!((slice.start..=slice.end).contains(&far));
        }
        assert!(Calendar::of("Europe/Atlantis").is_err());
    }
}
