//! Both sides of a figure, by how much many tasks do, or by how long one waits.

use crate::alternate::{Rounds, alternate, median};
use crate::bench::Bench;
use crate::figure::Figure;
use crate::ids::Ids;
use crate::load::{self, Load};
use crate::one_task::latency;
use crate::sides::Side;
use crate::slices::stage::Stage;

/// What is compared, and what the two sides are called where they are told apart.
pub struct Comparison<O, T> {
    pub figure: Figure,
    pub ours: O,
    pub theirs: T,
    pub names: [&'static str; 2],
    pub ids: Ids,
    pub stage: Stage,
}

impl<O: Side, T: Side> Comparison<O, T> {
    /// What 256 tasks do a second; and beside the figure how long a single one waits.
    pub async fn throughput(&self, bench: &mut Bench) {
        let rounds = self.load(bench, bench.rounds()).await;
        bench.figure(self.figure, rounds.ratio(Load::per_second));
        let [ours, theirs] = self.names;
        let of_ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
        bench.absolute(format!("{ours}_per_second"), of_ours(Load::per_second));
        bench.absolute(format!("{theirs}_per_second"), median(rounds.theirs.iter().map(Load::per_second)));
        bench.absolute(format!("{ours}_per_call"), of_ours(|load| load.hits / load.scripts.calls));
        bench.absolute(format!("{ours}_script_us"), of_ours(|load| load.scripts.mean_us()));
        self.wait(bench).await;
    }

    /// What both sides do for 256 tasks.
    pub async fn load(&self, bench: &Bench, rounds: usize) -> Rounds<Load> {
        const TASKS: usize = 256;
        let (time, probe) = (bench.time(), &self.stage.probe);
        alternate(
            rounds,
            async || load::run(&self.ours, &self.ids, TASKS, time, &mut probe.clone()).await,
            async || load::run(&self.theirs, &self.ids, TASKS, time, &mut probe.clone()).await,
        )
        .await
    }

    /// How long one task waits, p50.
    pub async fn latency(&self, bench: &mut Bench) {
        let ratio = self.wait(bench).await;
        bench.figure(self.figure, ratio);
    }

    async fn wait(&self, bench: &mut Bench) -> f64 {
        let time = bench.time();
        let rounds = alternate(
            bench.rounds(),
            async || latency(self.ours.clone(), &self.ids, time).await,
            async || latency(self.theirs.clone(), &self.ids, time).await,
        )
        .await;
        let ratio = rounds.ratio(|micros| *micros);
        let [ours, theirs] = self.names;
        bench.absolute(format!("{ours}_us"), median(rounds.ours));
        bench.absolute(format!("{theirs}_us"), median(rounds.theirs));
        ratio
    }
}
