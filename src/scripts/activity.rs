//! Typed calls of the activity scripts on one partition (docs/protocol.md, section 5). A *cell* is
//! one stripe of one page.

use indexmap::IndexMap;

use crate::error::Result;
use crate::family::kind::visit;
use crate::family::kind::{Counting, Sliding};
use crate::scripts::bundle::{self, Reply, borrowed, owned};
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, PairResult, Partition};
use crate::scripts::server_clock::ServerClock;

/// The views and visitors of a cell within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub views: u64,
    pub visitors: u64,
}

/// Views and visitors to be counted in one cell.
#[derive(Debug, Default)]
struct Touched<'p> {
    views: i64,
    visitors: Vec<&'p [u8]>,
}

/// The cells to count in, by stripe and page.
type Cells<'p> = IndexMap<(u32, &'p [u8]), Touched<'p>>;

impl Partition {
    /// Counts each visit with its number of views.
    pub async fn touch<'p>(
        &'p self,
        sliding: &Sliding,
        clock: &ServerClock,
        fence: Fence<'p>,
        visits: impl IntoIterator<Item = (&'p [u8], i64)>,
    ) -> Result<Counted> {
        let visits: Vec<_> = visits.into_iter().collect();
        let cells = &cells(sliding, &visits);
        let send = |now| self.send_touch(sliding, now, fence, cells);
        let reply = clock.call(send).await?;
        if let Some(outcome) = Counted::not_executed(&reply)? {
            return Ok(outcome);
        }
        Ok(Counted::Executed {
            results: vec![PairResult::Counted(0); visits.len()],
            due: Vec::new(),
            repeated: reply.status() == "DUP",
        })
    }

    /// Sends the cells. The time matters only if visitors are counted with HyperLogLogs.
    async fn send_touch(
        &self,
        sliding: &Sliding,
        now: i64,
        fence: Fence<'_>,
        cells: &Cells<'_>,
    ) -> Result<Reply> {
        let (layer_ms, layer) = (sliding.layer_ms(), named_layer(sliding, now));
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.open(), self.keys.schedule()]);
        for (stripe, page) in cells.keys() {
            keys.push(self.keys.views(*stripe, page));
            let Some(layer) = layer else {
                keys.push(self.keys.visitors(*stripe, page));
                continue;
            };
            keys.push(self.keys.layer(layer, *stripe, page));
            if sliding.keep_minutes {
                let minute = (layer * layer_ms).div_euclid(60_000) * 60;
                keys.push(self.keys.minute(minute, *stripe, page));
            }
        }
        let keeps_minutes = u8::from(sliding.keep_minutes);
        args.extend([owned(layer_ms), owned(sliding.layers), owned(keeps_minutes)]);
        args.extend(layer.map(owned));
        args.push(owned(cells.len()));
        for ((_, page), Touched { views, visitors }) in cells {
            args.extend([borrowed(*page), owned(views), owned(visitors.len())]);
            args.extend(visitors.iter().map(|visitor| borrowed(*visitor)));
        }
        let script = layer.map_or("activity_touch", |_| "activity_touch_hll");
        bundle::call(&self.redis, script, &keys, &args).await
    }

    /// Returns what these stripes of the page hold within the window, in the order of `stripes`.
    pub async fn seen(
        &self,
        sliding: &Sliding,
        clock: &ServerClock,
        page: &str,
        stripes: &[u32],
    ) -> Result<Vec<Seen>> {
        let page = page.as_bytes();
        let send = |now| self.send_seen(sliding, now, page, stripes);
        let reply = clock.call(send).await?;
        reply.expect_ok()?.read_all(stripes.len(), |reply| {
            Ok(Seen {
                views: reply.number()?,
                visitors: reply.number()?,
            })
        })
    }

    /// Asks for the window. The time matters only if visitors are counted with HyperLogLogs.
    async fn send_seen(
        &self,
        sliding: &Sliding,
        now: i64,
        page: &[u8],
        stripes: &[u32],
    ) -> Result<Reply> {
        let last = named_layer(sliding, now);
        let mut keys = Vec::new();
        for &stripe in stripes {
            keys.push(self.keys.views(stripe, page));
            let Some(last) = last else {
                keys.push(self.keys.visitors(stripe, page));
                continue;
            };
            let layers = (last + 1 - i64::from(sliding.layers))..=last;
            keys.extend(layers.map(|layer| self.keys.layer(layer, stripe, page)));
        }
        let mut args = vec![
            self.time(),
            owned(sliding.layer_ms()),
            owned(sliding.layers),
        ];
        args.extend(last.map(owned));
        let script = last.map_or("activity_now", |_| "activity_now_hll");
        bundle::repeat_safe(&self.redis, script, &keys, &args).await
    }
}

/// Returns the layer that a call must name at this time, if its visitors are counted with
/// HyperLogLogs: each layer has one, which is a key.
fn named_layer(sliding: &Sliding, now: i64) -> Option<i64> {
    let is_named = sliding.counting == Counting::HyperLogLog;
    is_named.then(|| now.div_euclid(sliding.layer_ms()))
}

fn cells<'p>(sliding: &Sliding, visits: &[(&'p [u8], i64)]) -> Cells<'p> {
    let mut cells = Cells::new();
    for &(visit, views) in visits {
        let (page, visitor) = visit::split(visit);
        let cell = cells.entry((sliding.stripe_of(visitor), page)).or_default();
        cell.views += views;
        cell.visitors.push(visitor);
    }
    cells
}
