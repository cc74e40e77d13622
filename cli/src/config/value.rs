//! Times as written in the file.

use std::time::Duration;

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

/// Parses a time from the command line.
pub fn time(text: &str) -> Result<Duration, String> {
    Time::try_from(text.to_owned()).map(|Time(time)| time)
}
