//! The curve of hits per second against the number of tasks.

use crate::acked::compare;
use crate::alternate::median;
use crate::bench::Bench;
use crate::curve::{Curve, draw};
use crate::ids::Ids;
use crate::load::Load;

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&["acked_by_tasks"]) {
        return;
    }
    let ids = Ids::zipf(100_000);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for exponent in (0..=11).step_by(bench.size(1, 3)) {
        let tasks = 1 << exponent;
        let rounds = compare(bench, &ids, tasks, 1).await;
        ours.push((tasks as f64, median(rounds.ours.iter().map(Load::per_second))));
        theirs.push((tasks as f64, median(rounds.theirs.iter().map(Load::per_second))));
    }
    let curves = [Curve { name: "add().await", points: ours }, Curve { name: "plain HINCRBY", points: theirs }];
    draw("acked_by_tasks", "tasks", "hits per second", &curves);
}
