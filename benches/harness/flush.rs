//! Rows per second from Redis to a commit, against a loop that upserts the same rows from memory.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index;

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::hand_written::{self, Way};
use crate::pending::Stage;

const FIGURE: Figure = Figure {
    name: "flush_vs_hand_written",
    what: "rows/s from Redis to the commit : the better of two hand-written upsert loops from memory",
    target: AtLeast(0.9),
};

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let rows = bench.size(400_000, 100_000);
    let stage = Stage::set(bench).await;
    hand_written::create_tables(&stage.pool).await;
    let rows_per_second = |seconds: f64| rows as f64 / seconds;
    let (mut round, mut other_round) = (0, 0);
    let ours = async || {
        round += 1;
        stage.fill(drawn(rows, round).into_iter()).await;
        [rows_per_second(stage.flush().await); 2]
    };
    let theirs = async || {
        other_round += 1;
        let mut ids = drawn(rows, other_round);
        // for free: counterfoil has to sort them itself
        ids.sort_unstable();
        let rows: Vec<_> = ids.into_iter().map(|id| (id, 1)).collect();
        let values = hand_written::upsert(&stage.pool, Way::Values, &rows).await;
        [values, hand_written::upsert(&stage.pool, Way::JsonTable, &rows).await].map(rows_per_second)
    };
    let rounds = alternate(bench.size(6, 2), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|[values, json]| values.max(*json)));
    bench.absolute("flushed_rows_per_second", median(rounds.ours.iter().map(|both| both[0])));
    bench.absolute("hand_written_values_rows_per_second", median(rounds.theirs.iter().map(|both| both[0])));
    bench.absolute("hand_written_json_rows_per_second", median(rounds.theirs.iter().map(|both| both[1])));
}

/// Ids out of two and a half times as many: in the first round all rows are new, later ever fewer.
fn drawn(ids: usize, round: u64) -> Vec<String> {
    let places = index::sample(&mut SmallRng::seed_from_u64(round), ids * 5 / 2, ids);
    places.into_iter().map(|number| format!("page/{number}")).collect()
}
