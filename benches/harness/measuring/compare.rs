//! Comparisons of two sides that run in turn, so that other load on the machine affects both. A
//! figure is the median of the ratios of neighbouring rounds. A noisy machine changes it less than
//! it changes the ratio of two medians.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::bench::Bench;
use super::figures::Figure;
use super::load::{Ids, Load, Side, over_after};
use super::stage::Stage;

/// The results of both sides, round by round.
pub struct Rounds<T> {
    pub ours: Vec<T>,
    pub theirs: Vec<T>,
}

/// Runs both sides for `rounds` rounds, after a warm-up round.
pub async fn alternate<T>(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> T,
    mut theirs: impl AsyncFnMut() -> T,
) -> Rounds<T> {
    let mut kept = Rounds::new();
    for round in 0..=rounds {
        kept.measure(round, &mut ours, &mut theirs).await;
    }
    kept
}

impl<T> Rounds<T> {
    pub fn new() -> Self {
        Rounds {
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }

    /// Runs both sides in turn; each goes first in every other round. Round 0 is a warm-up and is
    /// not kept.
    pub async fn measure(
        &mut self,
        round: usize,
        ours: impl AsyncFnOnce() -> T,
        theirs: impl AsyncFnOnce() -> T,
    ) {
        let (one, other) = if round.is_multiple_of(2) {
            let one = ours().await;
            (one, theirs().await)
        } else {
            let other = theirs().await;
            (ours().await, other)
        };
        if round > 0 {
            self.ours.push(one);
            self.theirs.push(other);
        }
    }

    /// Returns the ratio of ours to theirs for each round.
    pub fn ratios(&self, of: impl Fn(&T) -> f64) -> impl Iterator<Item = f64> {
        self.ours
            .iter()
            .zip(&self.theirs)
            .map(move |(ours, theirs)| of(ours) / of(theirs))
    }

    /// Returns the median of these ratios.
    pub fn ratio(&self, of: impl Fn(&T) -> f64) -> f64 {
        median(self.ratios(of))
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The two sides of a figure, with their names for the absolute numbers.
pub struct Comparison<O, T> {
    pub figure: Figure,
    pub ours: O,
    pub theirs: T,
    pub names: [&'static str; 2],
    pub ids: Ids,
    /// The stage with the Redis that both hit.
    pub stage: Stage,
}

impl<O: Side, T: Side> Comparison<O, T> {
    /// Measures the hits per second of 256 tasks, and also the latency of a single task.
    pub async fn throughput(&self, bench: &mut Bench) {
        let rounds = self.load(bench, bench.rounds()).await;
        bench.figure(self.figure, rounds.ratio(Load::per_second));
        let [ours, theirs] = self.names;
        let of_ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
        bench.absolute(format!("{ours}_per_second"), of_ours(Load::per_second));
        bench.absolute(
            format!("{theirs}_per_second"),
            median(rounds.theirs.iter().map(Load::per_second)),
        );
        bench.absolute(
            format!("{ours}_per_call"),
            of_ours(|load| load.hits / load.scripts.calls),
        );
        bench.absolute(
            format!("{ours}_script_us"),
            of_ours(|load| load.scripts.mean_us()),
        );
        self.wait(bench).await;
    }

    /// Runs both sides with 256 tasks.
    pub async fn load(&self, bench: &Bench, rounds: usize) -> Rounds<Load> {
        const TASKS: usize = 256;
        let (time, probe) = (bench.time(), &self.stage.probe);
        alternate(
            rounds,
            async || Load::run(&self.ours, &self.ids, TASKS, time, &mut probe.clone()).await,
            async || Load::run(&self.theirs, &self.ids, TASKS, time, &mut probe.clone()).await,
        )
        .await
    }

    /// Measures the latency of one task, p50.
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

/// Returns the median time of a hit in microseconds.
pub async fn latency(side: impl Side, ids: &Ids, time: Duration) -> f64 {
    percentile(&latencies(side, ids, 1, time).await, 0.5)
}

/// Returns the times of all hits in microseconds, ascending. The hits run in spawned tasks, as in a
/// server.
pub async fn latencies(side: impl Side, ids: &Ids, tasks: usize, time: Duration) -> Vec<f64> {
    let over = over_after(time);
    let hitting = (0..tasks).map(|task| {
        let (mut side, ids, over) = (side.clone(), ids.clone(), over.clone());
        tokio::spawn(async move {
            let mut micros = Vec::new();
            for id in ids.of_task(task, tasks) {
                let started = Instant::now();
                side.hit(id).await;
                micros.push(started.elapsed().as_secs_f64() * 1e6);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            micros
        })
    });
    let mut all = Vec::new();
    for hitting in hitting.collect::<Vec<_>>() {
        all.extend(hitting.await.unwrap());
    }
    all.sort_unstable_by(f64::total_cmp);
    all
}

/// Returns the value that this share of the ascending values does not exceed.
pub fn percentile(ascending: &[f64], share: f64) -> f64 {
    ascending[((ascending.len() - 1) as f64 * share) as usize]
}
