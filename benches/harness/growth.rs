//! Whether anything becomes dearer where millions of ids are pending.

use std::time::Duration;

use crate::alternate::median;
use crate::bench::Bench;
use crate::curve::{Curve, draw};
use crate::figure::{Figure, Target::AtMost};
use crate::ids::Ids;
use crate::load;
use crate::pending::Stage;
use crate::scripts::{self, Watch};
use crate::sides::Acked;

const ADD: Figure = Figure {
    name: "add_growth",
    what: "time per hit of add().await, 256 tasks, with 5 M ids pending : with 10 k",
    target: AtMost(1.25),
};
const FLUSH: Figure = Figure {
    name: "flush_growth",
    what: "time per row of a flush with 5 M ids pending : with 10 k",
    target: AtMost(1.25),
};
const SCRIPT: Figure = Figure {
    name: "longest_script_us",
    what: "longest run of a script, typical of a batch's way with 5 M ids pending and hits coming in",
    target: AtMost(1000.0),
};

/// A number of ids pending, on servers of its own, with what was measured there.
struct Size {
    ids: u32,
    stage: Stage,
    hit_us: Vec<f64>,
    row_us: Vec<f64>,
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[ADD.name, FLUSH.name, SCRIPT.name]) {
        return;
    }
    let mut sizes = Vec::new();
    for ids in bench.size([10_000, 100_000, 1_000_000, 5_000_000], [10_000, 50_000, 200_000, 1_000_000]) {
        let size = Size { ids, stage: Stage::set(bench).await, hit_us: Vec::new(), row_us: Vec::new() };
        size.fill().await;
        sizes.push(size);
    }
    // all sizes in every round, so that what else the machine does meets them all
    for _ in 0..bench.rounds() {
        for size in &mut sizes {
            size.measure_hits(bench.time() / 2).await;
        }
    }
    watch_scripts(bench, &sizes).await;
    for size in &mut sizes {
        size.measure_rows().await;
    }
    report(bench, &sizes);
}

impl Size {
    async fn fill(&self) {
        self.stage.fill((0..self.ids).map(|number| format!("page/{number}"))).await;
    }

    /// Hits on ids that are pending, so that the number of those stays as it is.
    async fn measure_hits(&mut self, time: Duration) {
        let (side, ids) = (Acked(self.stage.counters.clone()), Ids::even(self.ids));
        let load = load::run(&side, &ids, 256, time, &mut self.stage.probe.clone()).await;
        self.hit_us.push(1e6 / load.per_second());
    }

    /// Rows that are in the database already; small sizes several times, large ones are long enough as they are.
    async fn measure_rows(&mut self) {
        // makes the rows
        self.fill().await;
        self.stage.flush().await;
        for _ in 0..(1_000_000 / self.ids).clamp(1, 10) {
            self.fill().await;
            self.row_us.push(self.stage.flush().await * 1e6 / f64::from(self.ids));
        }
    }
}

/// Takes a batch off each partition and through all scripts while hits come in, and looks at what ran longest.
///
/// Nothing else runs meanwhile, no database either: Redis's clock goes on while a script waits for a processor.
async fn watch_scripts(bench: &mut Bench, sizes: &[Size]) {
    let Some(Size { ids, stage, .. }) = sizes.last() else { return };
    let mut watch = Watch::start(stage.probe.clone()).await;
    for partition in stage.partitions() {
        scripts::batch_through(&partition, stage.counters.family(), *ids).await;
        watch.look().await;
    }
    bench.figure(SCRIPT, watch.longest_script());
    for (name, micros) in watch.longest() {
        bench.absolute(format!("longest_{name}_us"), micros);
    }
}

fn report(bench: &mut Bench, sizes: &[Size]) {
    let [least, .., most] = sizes else { return };
    // rounds of hits were measured side by side, so they are compared side by side
    bench.figure(ADD, median(most.hit_us.iter().zip(&least.hit_us).map(|(most, least)| most / least)));
    bench.figure(FLUSH, median(most.row_us.clone()) / median(least.row_us.clone()));
    let points = |of: fn(&Size) -> &Vec<f64>| -> Vec<_> {
        sizes.iter().map(|size| (f64::from(size.ids), median(of(size).clone()))).collect()
    };
    let (hits, rows) = (points(|size| &size.hit_us), points(|size| &size.row_us));
    for (ids, micros) in &hits {
        bench.absolute(format!("hit_us_at_{ids}_pending"), *micros);
    }
    for (ids, micros) in &rows {
        bench.absolute(format!("row_us_at_{ids}_pending"), *micros);
    }
    draw("add", "ids pending", "us per hit", &[Curve { name: "add().await", points: hits }]);
    draw("flush", "ids pending", "us per row", &[Curve { name: "flush", points: rows }]);
}
