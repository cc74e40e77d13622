//! How long one hit takes for somebody who is alone.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::acked::Stage;
use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::figure::{Figure, Target::AtMost};
use crate::ids::Ids;
use crate::load::over_after;
use crate::sides::{Acked, Side};

const FIGURE: Figure = Figure {
    name: "acked_one_task_vs_hincrby",
    what: "latency of add().await of one task, p50 : plain HINCRBY",
    target: AtMost(1.15),
};

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let (stage, ids, time) = (Stage::set(bench).await, Ids::zipf(100_000), bench.time());
    let mut family = 0;
    let ours = async || {
        family += 1;
        stage.emptied().await;
        latency(Acked(stage.counters(family).await), &ids, time).await
    };
    let theirs = async || {
        stage.emptied().await;
        latency(stage.plain(), &ids, time).await
    };
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|micros| *micros));
    bench.absolute("one_task_us", median(rounds.ours));
    bench.absolute("one_task_hincrby_us", median(rounds.theirs));
}

/// The median time of a hit in microseconds, in a task of the runtime's workers as it is in a server.
pub async fn latency(mut side: impl Side, ids: &Ids, time: Duration) -> f64 {
    let ids = ids.clone();
    let hitting = tokio::spawn(async move {
        let (over, mut micros) = (over_after(time), Vec::new());
        for id in ids.of_task(0, 1) {
            let started = Instant::now();
            side.hit(id).await;
            micros.push(started.elapsed().as_secs_f64() * 1e6);
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        median(micros)
    });
    hitting.await.unwrap()
}
