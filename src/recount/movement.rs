//! The proof that a counter did not move between two reads, where +1 and -1 may cancel: its
//! partition was not cut in between, and its id is not in the buffer (docs/protocol.md, section 9).

use crate::client::handle::Handle;
use crate::error::Result;
use crate::process::tasks::try_each;
use crate::scripts::partition::buffered::{LastCut, last_cuts};
use crate::testing::ablation::{self, Guard};

/// The last cut of each partition of a family, before its counters are read.
#[derive(Clone, Debug)]
pub struct Cuts(Vec<LastCut>);

impl Cuts {
    pub async fn read(handle: &Handle) -> Result<Self> {
        let numbers: Vec<_> = (0..handle.family().partitions()).collect();
        let cuts = try_each(&numbers, async |number| {
            let partition = [handle.partition(*number)];
            last_cuts(&handle.shared.redis, &partition).await
        })
        .await?;
        let cuts = cuts.into_iter().flatten();
        Ok(Cuts(cuts.map(|(cut, _)| cut).collect()))
    }

    /// Returns for each id whether it moved since, or may have moved.
    pub async fn moved(&self, handle: &Handle, ids: &[&str]) -> Result<Vec<bool>> {
        let mut moved = vec![false; ids.len()];
        if ablation::is_out(Guard::RecountMoved) {
            return Ok(moved);
        }
        let groups = handle.by_partition_of_row(ids);
        let replies = try_each(&groups, async |(number, indexes)| {
            let members: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
            handle
                .partition(*number)
                .moved(self.0[*number as usize], &members)
                .await
        })
        .await?;
        for ((_, indexes), reply) in groups.into_iter().zip(replies) {
            for (place, index) in indexes.into_iter().enumerate() {
                // `None` means that the partition was cut again: the cut took the counted ids off
                // the buffer
                moved[index] |= reply.as_ref().is_none_or(|are_moved| are_moved[place]);
            }
        }
        Ok(moved)
    }
}
