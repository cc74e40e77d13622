//! Typed calls of the activity scripts on one partition (docs/protocol.md, section 5). A *cell* is
//! one stripe of one page.

use indexmap::IndexMap;

use crate::error::Result;
use crate::family::kind::Sliding;
use crate::family::kind::visit;
use crate::scripts::bundle::{self, borrowed, owned};
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, PairResult, Partition};

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
        fence: Fence<'p>,
        visits: impl IntoIterator<Item = (&'p [u8], i64)>,
    ) -> Result<Counted> {
        let visits: Vec<_> = visits.into_iter().collect();
        let cells = cells(sliding, &visits);
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.open(), self.keys.schedule()]);
        let keeps_minutes = u8::from(sliding.keep_minutes);
        args.extend([
            owned(sliding.layer_ms()),
            owned(sliding.layers),
            owned(keeps_minutes),
            owned(cells.len()),
        ]);
        for ((stripe, page), Touched { views, visitors }) in cells {
            keys.extend([
                self.keys.views(stripe, page),
                self.keys.visitors(stripe, page),
            ]);
            args.extend([borrowed(page), owned(views), owned(visitors.len())]);
            args.extend(visitors.into_iter().map(borrowed));
        }
        let reply = bundle::call(&self.redis, "activity_touch", &keys, &args).await?;
        if let Some(outcome) = Counted::not_executed(&reply)? {
            return Ok(outcome);
        }
        Ok(Counted::Executed {
            results: vec![PairResult::Counted(0); visits.len()],
            due: Vec::new(),
            repeated: reply.status() == "DUP",
        })
    }

    /// Returns what these stripes of the page hold within the window, in the order of `stripes`.
    pub async fn seen(&self, sliding: &Sliding, page: &str, stripes: &[u32]) -> Result<Vec<Seen>> {
        let page = page.as_bytes();
        let keys = stripes.iter().flat_map(|&stripe| {
            [
                self.keys.views(stripe, page),
                self.keys.visitors(stripe, page),
            ]
        });
        let keys: Vec<_> = keys.collect();
        let args = [
            self.time(),
            owned(sliding.layer_ms()),
            owned(sliding.layers),
        ];
        let reply = bundle::repeat_safe(&self.redis, "activity_now", &keys, &args).await?;
        reply.expect_ok()?.read_all(stripes.len(), |reply| {
            Ok(Seen {
                views: reply.number()?,
                visitors: reply.number()?,
            })
        })
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
