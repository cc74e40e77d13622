//! Times and durabilities as written in the file.

use std::time::Duration;

use counterfoil::Durability;
use jiff::SignedDuration;
use serde::Deserialize;

/// A time such as `2.5s`, `10m` or `6h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let expected = || format!("{text:?} is no time such as \"2.5s\", \"10m\" or \"6h\"");
        let time: SignedDuration = text.parse().map_err(|_| expected())?;
        Duration::try_from(time).map(Time).map_err(|_| expected())
    }
}

/// `immediate`, or `settle` and a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Settling(pub Durability);

impl TryFrom<String> for Settling {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "immediate" {
            return Ok(Settling(Durability::Immediate));
        }
        let time = text
            .strip_prefix("settle ")
            .and_then(|time| Time::try_from(time.trim().to_owned()).ok());
        let expected = || format!("{text:?} is neither \"immediate\" nor \"settle 2.5s\"");
        time.map(|Time(time)| Settling(Durability::Settle(time)))
            .ok_or_else(expected)
    }
}

/// Parses a time from the command line.
pub fn time(text: &str) -> Result<Duration, String> {
    Time::try_from(text.to_owned()).map(|Time(time)| time)
}
