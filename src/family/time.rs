//! Times in their written form, in whole milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The units that are longer than a second, in milliseconds.
const UNITS: [(u128, &str); 3] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m")];

/// A time that is written as text, such as `2.5s`, `10m` or `90d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

/// Writes the time in the longest unit of which it is a multiple, or in seconds.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let mut units = UNITS.iter().filter(|_| millis > 0);
        if let Some((unit, name)) = units.find(|(unit, _)| millis.is_multiple_of(*unit)) {
            return write!(f, "{}{name}", millis / unit);
        }
        let with_zeros = format!("{}.{:03}", millis / 1000, millis % 1000);
        let seconds = with_zeros.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{seconds}s")
    }
}

impl FromStr for Time {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let days = SpanRelativeTo::days_are_24_hours();
        let span = text.parse::<Span>().map_err(drop)?;
        let time = span.to_duration(days).map_err(drop)?;
        Duration::try_from(time).map(Time).map_err(drop)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor {
            expected: "a time such as \"2.5s\", \"10m\", \"6h\" or \"90d\"",
            parse: |text| text.parse().ok(),
        })
    }
}

/// A visitor of serde that reads a value from its text.
pub struct TextVisitor<T> {
    pub expected: &'static str,
    pub parse: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_they_are_read() {
        let times = ["0s", "1ms", "2500ms", "90s", "60s", "10m", "25h", "72h"];
        let written = ["0s", "0.001s", "2.5s", "90s", "1m", "10m", "25h", "3d"];
        for (given, expected) in times.into_iter().zip(written) {
            let time: Time = given.parse().unwrap();
            assert_eq!(time.to_string(), expected);
            assert_eq!(expected.parse(), Ok(time));
        }
    }
}
