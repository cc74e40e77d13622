//! The proof that a counter did not move between two reads, where +1 and -1 may cancel: its
//! partition was not cut in between, and its id is not in the buffer (docs/protocol.md, section 9).

use crate::client::handle::Handle;
use crate::connection::try_each;
use crate::error::Result;
use crate::scripts::buffered::{LastCut, last_cuts};
use crate::testing::ablation::{self, Guard};

/// The last cut of each partition of a family, before its counters are read.
#[derive(Clone, Debug)]
pub struct Cuts(Vec<LastCut>);

impl Cuts {
    pub async fn read(handle: &Handle) -> Result<Self> {
        let numbers: Vec<_> = (0..handle.family().partitions()).collect();
        let cut = async |number: &u32| {
            let partition = [handle.partition(*number)];
            last_cuts(&handle.shared.redis, &partition).await
        };
        let cuts = try_each(&numbers, cut).await?;
        Ok(Cuts(cuts.into_iter().flatten().collect()))
    }

    /// Returns for each id whether it moved since, or may have moved.
    pub async fn moved(&self, handle: &Handle, ids: &[&str]) -> Result<Vec<bool>> {
        let mut moved = vec![false; ids.len()];
        if ablation::is_out(Guard::RecountMoved) {
            return Ok(moved);
        }
        let groups = handle.by_partition_of_row(ids);
        let look = async |(number, indexes): &(u32, Vec<usize>)| {
            let members: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
            handle
                .partition(*number)
                .moved(self.0[*number as usize], &members)
                .await
        };
        let found = try_each(&groups, look).await?;
        for ((_, indexes), found) in groups.into_iter().zip(found) {
            for (place, index) in indexes.into_iter().enumerate() {
                // a later cut took the traces along
                moved[index] |= found.as_ref().is_none_or(|found| found[place]);
            }
        }
        Ok(moved)
    }
}
