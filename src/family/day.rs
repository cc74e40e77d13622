//! The day by which visitors are counted.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::error::{Error, Result};
use crate::family::calendar;

/// A day of the Gregorian calendar, from 1000-01-01 to 9999-12-31, like a `DATE` column of MySQL.
/// The application chooses the time zone in which it begins.
///
/// ```
/// use counterfoil::Day;
/// # fn main() -> counterfoil::Result<()> {
/// let day: Day = "2014-09-20".parse()?;
/// assert_eq!(day, Day::new(2014, 9, 20)?);
/// assert!(day < Day::today());
/// assert_eq!(day.to_string(), "2014-09-20");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(Date);

impl Day {
    /// Returns the day of that year, month (1 to 12) and day of the month (from 1).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if there is no such day.
    pub fn new(year: u16, month: u8, day: u8) -> Result<Self> {
        let text = format!("{year:04}-{month:02}-{day:02}");
        let none = |_| Error::invalid(format!("no such day: {text} in the years 1000 to 9999"));
        text.parse().map_err(none)
    }

    /// Returns the current day in UTC, by the clock of this machine.
    pub fn today() -> Self {
        Day::at(Timestamp::now(), TimeZone::UTC)
    }

    /// Returns the current day in an IANA time zone, for instance `Asia/Kathmandu`, by the clock of
    /// this machine.
    ///
    /// ```
    /// # fn main() -> counterfoil::Result<()> {
    /// let day = counterfoil::Day::today_in("Asia/Kathmandu")?;
    /// # assert!(day >= counterfoil::Day::today());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the time zone is not known.
    pub fn today_in(time_zone: &str) -> Result<Self> {
        Ok(Day::at(Timestamp::now(), calendar::time_zone(time_zone)?))
    }

    fn at(time: Timestamp, zone: TimeZone) -> Self {
        Day(time.to_zoned(zone).date())
    }

    /// Returns the day in UTC that contains the time.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) before the year 1000 and after the year
    /// 9999.
    pub fn of(time: SystemTime) -> Result<Self> {
        Timestamp::try_from(time)
            .ok()
            .and_then(|at| Day::in_range(at.to_zoned(TimeZone::UTC).date()))
            .ok_or_else(|| Error::invalid(format!("{time:?} is not in the years 1000 to 9999")))
    }

    fn in_range(date: Date) -> Option<Self> {
        (date.year() >= 1000).then_some(Day(date))
    }
}

impl FromStr for Day {
    type Err = Error;

    /// Parses `2014-09-20`, and no other spelling.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if there is no such day, or it is spelt
    /// otherwise.
    fn from_str(text: &str) -> Result<Self> {
        text.parse()
            .ok()
            .and_then(Day::in_range)
            .filter(|day| day.to_string() == text)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{text:?} is not a day YYYY-MM-DD of the years 1000 to 9999"
                ))
            })
    }
}

impl fmt::Display for Day {
    /// Writes `2014-09-20`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
