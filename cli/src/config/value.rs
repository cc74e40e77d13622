//! Times as written in the file.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

/// A time such as `2.5s`, `10m`, `6h` or `90d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct Time(pub Duration);

impl TryFrom<toml::Value> for Time {
    type Error = String;

    /// Refuses a number as well: it has no unit.
    fn try_from(value: toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::String(text) => time(&text).map(Time),
            other => Err(is_no_time(&other)),
        }
    }
}

/// Parses a time from the command line.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = match text.strip_suffix('d').map(str::parse::<u32>) {
        Some(Ok(days)) => Some(Duration::from_hours(24 * u64::from(days))),
        _ => {
            let time = text.parse::<SignedDuration>().ok();
            time.and_then(|time| Duration::try_from(time).ok())
        }
    };
    time.ok_or_else(|| is_no_time(&format_args!("{text:?}")))
}

fn is_no_time(written: &dyn std::fmt::Display) -> String {
    format!("{written} is no time such as \"2.5s\", \"10m\", \"6h\" or \"90d\"")
}
