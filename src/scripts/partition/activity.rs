//! Typed calls of the activity scripts on one partition (docs/protocol.md, section 5). A *cell* is
//! one stripe of one page.

use indexmap::IndexMap;

use crate::error::Result;
use crate::family::Family;
use crate::family::kind::SlidingWindow;
use crate::family::kind::visit;
use crate::scripts::bundle::{self, borrowed, owned};
use crate::scripts::counting::{CallReply, PairResult};
use crate::scripts::fence::Fence;
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;

/// The views and visitors of a cell within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellSums {
    pub views: u64,
    pub visitors: u64,
}

/// Views and visitors to be counted in one cell.
#[derive(Debug, Default)]
struct CellVisits<'p> {
    views: i64,
    visitors: Vec<&'p [u8]>,
}

/// The cells to count in, by stripe and page.
type Cells<'p> = IndexMap<(u32, &'p [u8]), CellVisits<'p>>;

impl Partition {
    /// Counts each visit with its number of views.
    pub async fn touch<'p>(
        &'p self,
        family: &Family,
        sliding: &SlidingWindow,
        fence: Fence<'p>,
        visits: impl IntoIterator<Item = (&'p [u8], i64)>,
    ) -> Result<CallReply> {
        let visits: Vec<_> = visits.into_iter().collect();
        let (cells, cell_of) = cells(sliding, &visits);
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.buffer(), self.keys.meta()]);
        args.extend([owned(sliding.stripes), owned(cells.len())]);
        let count = cells.len();
        for ((stripe, page), CellVisits { views, visitors }) in cells {
            keys.extend([
                self.keys.views(stripe, page),
                self.keys.visitors(stripe, page),
            ]);
            args.extend([borrowed(page), owned(views), owned(visitors.len())]);
            args.extend(visitors.into_iter().map(borrowed));
        }
        let mut reply = bundle::call(&self.redis, "activity_touch", &keys, &args).await?;
        if let Some(outcome) = CallReply::not_executed(&reply)? {
            return Ok(outcome);
        }
        let (of_cells, is_due) = PairResult::read_kept(&mut reply, family, count)?;
        Ok(CallReply::Executed {
            results: cell_of.into_iter().map(|cell| of_cells[cell]).collect(),
            due: if is_due { vec![0] } else { Vec::new() },
            repeated: reply.status() == "DUP",
        })
    }

    /// Returns what these stripes of the page hold within the window, in the order of `stripes`.
    /// `None` if pages have another number of stripes in this Redis.
    pub async fn seen(
        &self,
        home: Keys,
        sliding: &SlidingWindow,
        page: &str,
        stripes: &[u32],
    ) -> Result<Option<Vec<CellSums>>> {
        let page = page.as_bytes();
        let keys = stripes.iter().flat_map(|&stripe| {
            [
                self.keys.views(stripe, page),
                self.keys.visitors(stripe, page),
            ]
        });
        let keys: Vec<_> = std::iter::once(home.calls()).chain(keys).collect();
        let args = [owned(sliding.stripes), self.time()];
        let mut reply = bundle::repeat_safe(&self.redis, "activity_now", &keys, &args).await?;
        if !reply.is_ok_or("MISMATCH")? {
            return Ok(None);
        }
        let seen = reply.read_all(stripes.len(), |reply| {
            Ok(CellSums {
                views: reply.number()?,
                visitors: reply.number()?,
            })
        });
        seen.map(Some)
    }
}

/// Groups the visits by cell. Also returns the index of each visit's cell.
fn cells<'p>(sliding: &SlidingWindow, visits: &[(&'p [u8], i64)]) -> (Cells<'p>, Vec<usize>) {
    let mut cells = Cells::new();
    let mut cell_of = Vec::with_capacity(visits.len());
    for &(visit, views) in visits {
        let (page, visitor) = visit::split(visit);
        let entry = cells.entry((sliding.stripe_of(visitor), page));
        cell_of.push(entry.index());
        let cell = entry.or_default();
        cell.views += views;
        cell.visitors.push(visitor);
    }
    (cells, cell_of)
}
