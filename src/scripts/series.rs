//! Typed calls of the series scripts on one partition, including those that move finished slices,
//! and activity's minutes, to the buffer (docs/protocol.md, section 5).

use std::time::Duration;

use crate::error::Result;
use crate::family::calendar::Precision;
use crate::family::kind::{Window, Windows};
use crate::scripts::bundle::{self, Reply, borrowed, owned, text};
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, PairResult, Partition};
use crate::scripts::server_clock::ServerClock;

impl Partition {
    /// Counts each name into the current slices of all precisions.
    pub async fn add_to_series<'p>(
        &'p self,
        windows: &Windows,
        clock: &ServerClock,
        fence: Fence<'p>,
        pairs: impl IntoIterator<Item = (&'p [u8], i64)>,
    ) -> Result<Counted> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let (mut keys, begin) = fence.begin(self.time());
        let own = [
            self.keys.open(),
            self.keys.schedule(),
            self.keys.names(),
            self.keys.idle(),
        ];
        keys.extend(own);
        keys.extend(pairs.iter().flat_map(|(name, _)| {
            windows
                .windows
                .iter()
                .map(|one| self.keys.window(one.precision, name))
        }));
        let send = async |now| {
            let mut args = begin.clone();
            args.push(owned(windows.windows.len()));
            for window in &windows.windows {
                args.push(owned(windows.descriptor(window, now)?));
            }
            args.extend(
                pairs
                    .iter()
                    .flat_map(|(name, n)| [borrowed(*name), owned(n)]),
            );
            bundle::call(&self.redis, "series_add", &keys, &args).await
        };
        let mut reply = clock.call(send).await?;
        if let Some(outcome) = Counted::not_executed(&reply)? {
            return Ok(outcome);
        }
        let repeated = reply.status() == "DUP";
        // the script returns no sums
        let results = if repeated {
            let refusals = PairResult::read_refusals(&mut reply, pairs.len())?.into_iter();
            let result = |refusal: Option<_>| refusal.unwrap_or(PairResult::Counted(0));
            refusals.map(result).collect()
        } else {
            reply.read_all(pairs.len(), |reply| reply.read(PairResult::parse))?
        };
        Ok(Counted::Executed {
            results,
            due: Vec::new(),
            repeated,
        })
    }

    /// The maximum number of windows in one call of [`windows`](Self::windows).
    pub(crate) const WINDOWS: usize = 100;

    /// Returns the server's time in Unix milliseconds and each window's slices: starts and counts,
    /// unordered.
    pub(crate) async fn windows(
        &self,
        precision: Precision,
        names: &[&str],
    ) -> Result<(i64, Vec<Vec<(i64, i64)>>)> {
        let keys: Vec<_> = names
            .iter()
            .map(|name| self.keys.window(precision, name.as_bytes()))
            .collect();
        let mut reply = bundle::expect_ok(&self.redis, "series_get", &keys, &[self.time()]).await?;
        let now = reply.number()?;
        let windows = reply.read_all(names.len(), |reply| {
            reply.read(|value| slices(text(value)?))
        })?;
        Ok((now, windows))
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

    /// Moves slices that are over to the buffer. Returns the time until the next slice is over, if
    /// there is one.
    pub async fn close_slices(&self) -> Result<Option<Duration>> {
        loop {
            let (_, next) = self.close("0").await?;
            if next != Some(Duration::ZERO) {
                return Ok(next);
            }
        }
    }

    /// Moves all open slices to the buffer. Later counts in such a slice are moved when it is over.
    pub async fn close_all_slices(&self) -> Result<()> {
        while self.close("1").await?.0 > 0 {}
        Ok(())
    }

    /// Moves some slices to the buffer. Returns their number and the time until the next slice is
    /// over.
    async fn close(&self, all: &str) -> Result<(u64, Option<Duration>)> {
        const SLICES: &str = "500";
        let keys = [
            self.keys.open(),
            self.keys.schedule(),
            self.keys.buffer(),
            self.keys.meta(),
        ];
        let args = [SLICES, all, &self.now_ms];
        let mut reply = bundle::expect_ok(&self.redis, "series_close", &keys, &args).await?;
        Ok((reply.number()?, reply.optional_millis()?))
    }
}

/// Converts Unix milliseconds to whole seconds.
pub(crate) fn seconds(ms: i64) -> i64 {
    ms.div_euclid(1000)
}

impl Windows {
    /// Describes a window to `series_add` at that time: label, slice, number of slices, and prefix
    /// of its kept ids.
    fn descriptor(&self, window: &Window, now_ms: i64) -> Result<String> {
        let Window {
            precision,
            slices,
            kept,
        } = *window;
        let (slice, called) = match precision {
            Precision::Seconds(seconds) => (seconds.to_string(), "*".to_owned()),
            Precision::Day | Precision::Month => {
                let slice = self.calendar.slice(precision, seconds(now_ms))?;
                (
                    format!("{}-{}", slice.start, slice.end),
                    self.calendar.called(precision, slice.start)?,
                )
            }
        };
        let keep = if kept {
            self.kept_as(precision, &called)
        } else {
            "-".to_owned()
        };
        Ok(format!("{precision} {slice} {slices} {keep}"))
    }

    /// Returns the id under which a slice is kept.
    pub(crate) fn kept_id(&self, precision: Precision, start: i64, name: &str) -> Result<String> {
        Ok(self.kept_as(precision, &self.calendar.called(precision, start)?) + name)
    }
}

fn slices(text: &str) -> Option<Vec<(i64, i64)>> {
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
    let mut slices = Vec::with_capacity(128);
    while let Some(start) = words.next() {
        slices.push((start?, words.next()??));
    }
    Some(slices)
}
