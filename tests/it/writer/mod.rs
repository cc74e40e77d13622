mod callers;
mod history;
mod interleavings;
mod many;
mod recorded;
mod requests;
mod values;

use crate::support::*;

/// Opens buffered counters in this number of partitions.
async fn views(partitions: u32) -> (Plain, BufferedCounters) {
    Plain::of(family("views").partitions(partitions)).await
}
