//! Hits summed in the process: `record()`, with a flush at the end, against plain HINCRBY.

use crate::acked::Stage;
use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::load::{self, Load};
use crate::servers::Counters;
use crate::sides::Side;

const FIGURE: Figure = Figure {
    name: "record_vs_hincrby",
    what: "hits/s of record() and a flush at the end, 256 tasks, Zipf : plain HINCRBY",
    target: AtLeast(20.0),
};
const TASKS: usize = 256;

/// `record()`.
#[derive(Clone)]
struct Recorded {
    counters: Counters,
    hits: u32,
}

impl Side for Recorded {
    async fn hit(&mut self, id: &str) {
        self.counters.record(id, 1).unwrap();
        self.hits += 1;
        // nothing is waited for, and the other tasks are to have their turn
        if self.hits.is_multiple_of(64) {
            tokio::task::yield_now().await;
        }
    }

    async fn finish(self) {
        let _ = self.counters.flush().await.unwrap();
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let (stage, ids, time) = (Stage::set(bench).await, Ids::zipf(100_000), bench.time());
    let mut family = 0;
    let ours = async || {
        family += 1;
        let side = Recorded { counters: stage.counters(family).await, hits: 0 };
        load::run(&side, &ids, TASKS, time, &mut stage.emptied().await).await
    };
    let theirs = async || load::run(&stage.plain(), &ids, TASKS, time, &mut stage.emptied().await).await;
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(Load::per_second));
    bench.absolute("recorded_per_second", median(rounds.ours.iter().map(Load::per_second)));
}
