//! Series and activity, beside plain commands.

mod add;
mod compare;
mod memory;
mod now;
mod stage;
mod touch;
mod window;

use crate::bench::Bench;

pub async fn measure(bench: &mut Bench) {
    add::measure(bench).await;
    window::measure(bench).await;
    memory::measure(bench).await;
    touch::measure(bench).await;
    now::measure(bench).await;
}
