//! Typed calls of the activity scripts on one partition (docs/protocol.md, section 5). A *cell* is
//! one stripe of one page.

use indexmap::IndexMap;

use crate::error::Result;
use crate::family::kind::visit;
use crate::family::kind::{Counting, Sliding};
use crate::scripts::bundle::{self, Arg, Reply, borrowed, owned};
use crate::scripts::fence::Fence;
use crate::scripts::keys::Key;
use crate::scripts::partition::{Counted, PairResult, Partition};
use crate::scripts::series::seconds;
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
        let cells = cells(sliding, &visits);
        let reply = match sliding.counting {
            Counting::Exact => self.touch_exact(sliding, fence, &cells).await?,
            Counting::HyperLogLog => {
                let mut guess = clock.guess();
                loop {
                    if let Some(reply) =
                        guess.accept(self.touch_hll(sliding, guess.now(), fence, &cells).await?)?
                    {
                        break reply;
                    }
                }
            }
        };
        if let Some(outcome) = Counted::not_executed(&reply)? {
            return Ok(outcome);
        }
        Ok(Counted::Executed {
            results: vec![PairResult::Counted(0); visits.len()],
            due: Vec::new(),
            repeated: reply.status() == "DUP",
        })
    }

    async fn touch_exact(
        &self,
        sliding: &Sliding,
        fence: Fence<'_>,
        cells: &Cells<'_>,
    ) -> Result<Reply> {
        let (mut keys, mut args) = self.begin_touch(sliding, fence);
        for (stripe, page) in cells.keys() {
            keys.extend([
                self.keys.views(*stripe, page),
                self.keys.visitors(*stripe, page),
            ]);
        }
        push_cells(&mut args, cells);
        bundle::call(&self.redis, "activity_touch", &keys, &args).await
    }

    async fn touch_hll(
        &self,
        sliding: &Sliding,
        now: i64,
        fence: Fence<'_>,
        cells: &Cells<'_>,
    ) -> Result<Reply> {
        let layer = now.div_euclid(sliding.layer_ms());
        let minute = seconds(layer * sliding.layer_ms()).div_euclid(60) * 60;
        let (mut keys, mut args) = self.begin_touch(sliding, fence);
        for (stripe, page) in cells.keys() {
            keys.extend([
                self.keys.views(*stripe, page),
                self.keys.layer(layer, *stripe, page),
            ]);
            keys.extend(
                sliding
                    .keep_minutes
                    .then(|| self.keys.minute(minute, *stripe, page)),
            );
        }
        args.push(owned(layer));
        push_cells(&mut args, cells);
        bundle::call(&self.redis, "activity_touch_hll", &keys, &args).await
    }

    fn begin_touch<'a>(&'a self, sliding: &Sliding, fence: Fence<'a>) -> (Vec<Key>, Vec<Arg<'a>>) {
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.open(), self.keys.schedule()].map(String::into_bytes));
        args.extend([
            owned(sliding.layer_ms()),
            owned(sliding.layers),
            owned(u8::from(sliding.keep_minutes)),
        ]);
        (keys, args)
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
        let mut reply = match sliding.counting {
            Counting::Exact => self.seen_exactly(sliding, page, stripes).await?,
            Counting::HyperLogLog => {
                let mut guess = clock.guess();
                loop {
                    if let Some(reply) =
                        guess.accept(self.seen_hll(sliding, guess.now(), page, stripes).await?)?
                    {
                        break reply;
                    }
                }
            }
        };
        reply.expect_ok()?;
        reply.read_all(stripes.len(), |reply| {
            Ok(Seen {
                views: reply.number()?,
                visitors: reply.number()?,
            })
        })
    }

    async fn seen_exactly(&self, sliding: &Sliding, page: &[u8], stripes: &[u32]) -> Result<Reply> {
        let of = |stripe: &u32| {
            [
                self.keys.views(*stripe, page),
                self.keys.visitors(*stripe, page),
            ]
        };
        let keys: Vec<_> = stripes.iter().flat_map(of).collect();
        bundle::repeat_safe(
            &self.redis,
            "activity_now",
            &keys,
            &self.window_args(sliding),
        )
        .await
    }

    async fn seen_hll(
        &self,
        sliding: &Sliding,
        now: i64,
        page: &[u8],
        stripes: &[u32],
    ) -> Result<Reply> {
        let last = now.div_euclid(sliding.layer_ms());
        let layers = (last + 1 - i64::from(sliding.layers))..=last;
        let mut keys = Vec::with_capacity(stripes.len() * (1 + sliding.layers as usize));
        for stripe in stripes {
            keys.push(self.keys.views(*stripe, page));
            keys.extend(
                layers
                    .clone()
                    .map(|layer| self.keys.layer(layer, *stripe, page)),
            );
        }
        let mut args = Vec::from(self.window_args(sliding));
        args.push(owned(last));
        bundle::repeat_safe(&self.redis, "activity_now_hll", &keys, &args).await
    }

    fn window_args(&self, sliding: &Sliding) -> [Arg<'_>; 3] {
        [
            self.time(),
            owned(sliding.layer_ms()),
            owned(sliding.layers),
        ]
    }
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

fn push_cells<'a>(args: &mut Vec<Arg<'a>>, cells: &'a Cells<'_>) {
    args.push(owned(cells.len()));
    for ((_, page), Touched { views, visitors }) in cells {
        args.extend([borrowed(*page), owned(views), owned(visitors.len())]);
        args.extend(visitors.iter().map(|visitor| borrowed(*visitor)));
    }
}
