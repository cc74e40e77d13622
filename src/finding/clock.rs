//! The clocks of the servers, compared with the one of this machine.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::Finding;

/// The difference from which a clock is reported. MySQL returns whole seconds.
const TOLERANCE: Duration = Duration::from_secs(10);

/// Returns a finding if the clock of a server, which was read within `asked`, is wrong by more than
/// a few seconds.
pub fn finding(
    server: &str,
    time: SystemTime,
    asked: &Range<SystemTime>,
    effect: &str,
) -> Option<Finding> {
    let between = |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default();
    let (ahead, behind) = (between(asked.end, time), between(time, asked.start));
    let (difference, direction) = if ahead > behind {
        (ahead, "ahead of")
    } else {
        (behind, "behind")
    };
    let seconds = difference.as_secs();
    (difference > TOLERANCE).then(|| {
        Finding::warning(
            format!("{server} clock"),
            format!("it is {seconds} s {direction} the one of this machine: {effect}"),
            "Run NTP on both",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_reported() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let asked = at(1000)..at(1030);
        let message = |seconds| {
            let finding = finding("redis", at(seconds), &asked, "effect");
            finding.map(|finding| finding.message)
        };
        assert_eq!([990, 1015, 1040].map(message), [None, None, None]);
        let ahead = "it is 11 s ahead of the one of this machine: effect";
        let behind = "it is 900 s behind the one of this machine: effect";
        let wrong = [1041, 100].map(message);
        assert_eq!(wrong, [ahead, behind].map(|text| Some(text.to_owned())));
    }
}
