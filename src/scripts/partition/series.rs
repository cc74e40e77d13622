//! Typed calls of the series scripts on one partition (docs/protocol.md, section 5).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::family::Family;
use crate::family::calendar::Precision;
use crate::family::kind::{Kind, Windows, timed};
use crate::scripts::bundle::{self, Reply, borrowed, owned, text};
use crate::scripts::counting::{CallReply, PairResult, no_calendar};
use crate::scripts::fence::Fence;
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::testing::simulated;

/// The windows of some series: the starts of the slices, and for each series their counts.
pub type Read = (Vec<i64>, Vec<Vec<i64>>);

impl Partition {
    /// Counts each hit: the [key](timed::key) of a name and time, and the amount. `labels` are those
    /// of the family's windows.
    pub async fn add_to_series<'p>(
        &'p self,
        family: &Family,
        labels: &[Precision],
        fence: Fence<'p>,
        hits: impl IntoIterator<Item = (&'p [u8], i64)>,
    ) -> Result<CallReply> {
        let home = fence.home;
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend(home.calendars());
        let own = [self.keys.buffer(), self.keys.meta()];
        keys.extend(own.into_iter().chain([self.keys.names(), self.keys.idle()]));
        let mut count = 0;
        for (key, n) in hits {
            let (at, name) = timed::split(key);
            keys.extend(labels.iter().map(|label| self.keys.window(*label, name)));
            args.extend([borrowed(name), owned(n), borrowed(at)]);
            count += 1;
        }
        let mut reply = bundle::call(&self.redis, "series_add", &keys, &args).await?;
        if let Some(outcome) = CallReply::not_executed(&reply)? {
            return Ok(outcome);
        }
        let (results, is_due) = PairResult::read_kept(&mut reply, family, count)?;
        Ok(CallReply::Executed {
            results,
            due: if is_due { vec![0] } else { Vec::new() },
            repeated: reply.status() == "DUP",
        })
    }

    /// The maximum number of windows in one call of [`windows`](Self::windows).
    pub(crate) const WINDOWS: usize = 100;

    /// Returns the windows of these series, whose current slice is the last one. `None` if the
    /// family has no such window in this Redis.
    pub(crate) async fn windows(
        &self,
        home: Keys,
        precision: Precision,
        names: &[&str],
    ) -> Result<Option<Read>> {
        let [days, months] = home.calendars();
        let mut keys = vec![home.calls(), days, months];
        for name in names {
            keys.push(self.keys.window(precision, name.as_bytes()));
        }
        let args = [owned(precision), self.time()];
        let mut reply = bundle::repeat_safe(&self.redis, "series_get", &keys, &args).await?;
        match reply.status() {
            "OK" => {}
            "MISMATCH" => return Ok(None),
            "NOCALENDAR" => return Err(no_calendar()),
            _ => return Err(reply.unexpected_reply()),
        }
        let numbers = |text: &str| {
            let words = text.split_ascii_whitespace();
            words.map(|word| word.parse().ok()).collect()
        };
        let starts = reply.read(|value| numbers(text(value)?))?;
        let counts = reply.read_all(names.len(), |reply| {
            reply.read(|value| numbers(text(value)?))
        })?;
        Ok(Some((starts, counts)))
    }

    /// Writes when the days and months of the family's windows begin, to this home of its calls.
    pub async fn write_calendars(&self, family: &Family) -> Result<()> {
        let Kind::Series(windows) = &family.kind else {
            return Ok(());
        };
        for precision in [Precision::Day, Precision::Month] {
            let Some(window) = windows.of(precision) else {
                continue;
            };
            let mut now = here();
            loop {
                let keys = [self.keys.calendar(precision)];
                let mut args = vec![self.time()];
                for (start, date) in windows.boundaries(window, now)? {
                    args.extend([owned(start), owned(date)]);
                }
                let mut reply =
                    bundle::repeat_safe(&self.redis, "series_calendar", &keys, &args).await?;
                if reply.is_ok_or("STALE")? {
                    break;
                }
                // The list does not cover the server's time, because this machine's clock differs
                // too much. It is made again for the time that the server returned.
                now = reply.number::<i64>()?.div_euclid(1000);
            }
        }
        Ok(())
    }

    /// Returns up to `limit` names that begin with `prefix` and follow `after`, ascending. If there
    /// may be more, also returns the last name checked. Omits names that are not UTF-8, which come
    /// from other languages.
    pub(crate) async fn names(
        &self,
        prefix: &str,
        after: &[u8],
        limit: usize,
    ) -> Result<(Vec<String>, Option<Vec<u8>>)> {
        let args = [borrowed(prefix), borrowed(after), owned(limit), self.time()];
        let keys = [self.keys.names(), self.keys.idle()];
        let mut reply = bundle::expect_ok(&self.redis, "series_names", &keys, &args).await?;
        let last = reply.bytes()?;
        let names = reply.read_all(reply.left(), Reply::bytes)?.into_iter();
        Ok((
            names
                .filter_map(|name| String::from_utf8(name).ok())
                .collect(),
            Some(last).filter(|last| !last.is_empty()),
        ))
    }
}

/// Returns this machine's time in Unix seconds.
fn here() -> i64 {
    let since = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    };
    let time = simulated::time().map_or_else(|| since().as_millis(), u128::from);
    (i64::try_from(time).unwrap_or(0) + simulated::clock_error()).div_euclid(1000)
}

impl Windows {
    /// Returns the id under which a slice is kept.
    pub(crate) fn kept_id(&self, precision: Precision, start: i64, name: &str) -> Result<String> {
        Ok(self.kept_as(precision, &self.calendar.called(precision, start)?) + name)
    }
}
