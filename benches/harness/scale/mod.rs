//! Capacity planning: a model of what hits cost both servers, its predictions, and their comparison
//! with a cluster. `./dev bench scale` prints the tables.
//!
//! All costs are CPU time of processes, which other load on the machine hardly changes.

mod cluster;
mod cost;
mod limits;

use crate::measuring::Bench;
use cost::{Costs, Redis};
use limits::Limits;

/// The share of a core of Redis, and of MySQL, that a plan should use at most.
const BUSY: f64 = 0.6;
/// The default sync time in seconds.
const SYNC: f64 = 60.0;

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&["scale"]) {
        return;
    }
    let mut all = Vec::new();
    for setting in cost::SETTINGS {
        all.push((setting, Costs::measure(bench, setting).await));
    }
    let replicated = &all[2].1;
    let checks = cluster::check(bench, &replicated.redis).await;
    let limits = Limits::measure(bench).await;
    for (setting, costs) in &all {
        costs.record(bench, setting.name);
    }
    limits.record(bench);
    for check in &checks {
        bench.absolute(
            format!("scale_predicted_vs_measured_{}", check.name()),
            check.predicted / check.measured,
        );
    }
    println!("\nCosts in us of CPU time\n");
    cost::print(&all);
    println!(
        "\nThe model against three nodes of a cluster, each with a replica: seconds of CPU time\n"
    );
    cluster::print(&checks);
    println!("\nPredictions, with a replica; each id changes ten times within a sync time\n");
    predict(replicated, limits.id_bytes);
    println!("\nLimits of a pair\n");
    limits.print(replicated);
}

/// Prints what hits at some rates take.
fn predict(costs: &Costs, id_bytes: f64) {
    println!(
        "| hits per second | hits per call | cores of Redis | one Redis | nodes of a cluster | rows per second | cores of MySQL | pending ids | their memory |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for rate in [1e4, 1e5, 1e6] {
        for hits_of_call in [1.0, 10.0, 100.0] {
            let rows = rate / 10.0;
            let redis = costs.redis.cores(rate, hits_of_call, rows);
            let one = if redis <= BUSY { "yes" } else { "no" };
            // the ids of a sync time, and as many in batches on their way
            let pending = 2.0 * rows * SYNC;
            println!(
                "| {} | {hits_of_call} | {redis:.2} | {one} | {} | {} | {:.2} | {} | {} MB |",
                grouped(rate),
                grouped((redis / BUSY).ceil()),
                grouped(rows),
                rows * costs.mysql.row / 1e6,
                grouped(pending),
                grouped(pending * id_bytes / 1e6),
            );
        }
    }
}

/// Writes a whole number with commas.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Redis {
    /// Returns the cores that these hits and rows per second keep busy. A call carries one
    /// partition, as in a cluster.
    fn cores(&self, hits: f64, hits_of_call: f64, rows: f64) -> f64 {
        let calls = hits / hits_of_call;
        (calls * (self.call + self.partition) + hits * self.id + rows * self.row) / 1e6
    }
}
