//! Cached counters, beside plain commands.

mod memory;
mod miss;
mod one_task;
mod saves;
mod stage;
mod throughput;

use crate::bench::Bench;

pub async fn measure(bench: &mut Bench) {
    one_task::measure(bench).await;
    throughput::measure(bench).await;
    miss::measure(bench).await;
    saves::measure(bench).await;
    memory::measure(bench).await;
}
