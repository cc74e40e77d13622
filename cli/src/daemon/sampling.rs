//! Samples of the families of a pair, from Redis, which turn their counts into rates.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::admin::Overview;
use counterfoil::{Counterfoil, Result};
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::{count_hits, count_refused};
use super::state::PairState;
use crate::status::{self, FamilyStatus, LATE, unix_now};
use crate::view::{FamilyView, Sample};

/// The pause between samples of the families.
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);
/// The pause if there are many families: a sample of 10,000 takes Redis about 100 ms.
const SAMPLE_PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY_FAMILIES: usize = 1_000;
/// The maximum number of samples of a family.
const SAMPLES: usize = 90;

/// Publishes the state of the families, with MySQL's last overview. It needs only Redis, and never
/// returns.
pub async fn sample(
    counterfoil: Counterfoil,
    overview: watch::Receiver<Vec<Overview>>,
    state: Arc<PairState>,
) {
    loop {
        let overview = overview.borrow().clone();
        let mut pause = SAMPLE_PAUSE;
        let read = sample_all(&counterfoil, &state, &overview).await;
        let read = read.map(|families| {
            if families.len() > MANY_FAMILIES {
                pause = SAMPLE_PAUSE_OF_MANY;
            }
            let before = state.view.borrow().clone();
            let before: HashMap<_, _> = before
                .families
                .iter()
                .map(|family| (family.status.sort_key(), family))
                .collect();
            let families = families.into_iter().map(|status| {
                let before = before.get(&status.sort_key()).copied();
                sampled(&state.name, status, before)
            });
            let families = families.collect();
            state.update(|view| {
                view.families = families;
                view.add_total(unix_now());
            });
        });
        state.looked("families", read);
        sleep(pause).await;
    }
}

/// Returns the state of the families that are served, and of the others in the database: another
/// daemon may serve those, or none.
async fn sample_all(
    counterfoil: &Counterfoil,
    state: &PairState,
    overview: &[Overview],
) -> Result<Vec<FamilyStatus>> {
    let served = counterfoil.backlogs().await?;
    let names: HashSet<_> = served
        .iter()
        .map(|(family, _)| family.to_string())
        .collect();
    let others = counterfoil.backlogs_of(state.known_except(&names)).await?;
    let mut families = status::of_families(served, overview, LATE);
    let others = status::of_families(others, overview, LATE).into_iter();
    families.extend(others.map(|other| FamilyStatus {
        served: false,
        ..other
    }));
    Ok(families)
}

/// Returns the view of a family with this state, and counts its hits since the view `before`. If
/// the state could not be read, the last figures stay.
fn sampled(pair: &str, status: FamilyStatus, before: Option<&FamilyView>) -> FamilyView {
    let same = before.filter(|before| before.status.state == status.state);
    let state_since = same.map_or_else(unix_now, |before| before.state_since);
    if let (None, Some(before)) = (status.seen, before) {
        return FamilyView {
            status: FamilyStatus {
                state: status.state,
                problem: status.problem,
                ..before.status.clone()
            },
            rate: None,
            state_since,
            ..before.clone()
        };
    }
    // a lower count means that Redis lost a part, and has the rest of what was counted before
    let new = |number: fn(&FamilyStatus) -> Option<u64>| {
        let known = before.and_then(|before| number(&before.status));
        number(&status).map(|count| count.saturating_sub(known.unwrap_or(0)))
    };
    let counted = new(|status| status.counted);
    count_hits(pair, &status.family, counted.unwrap_or(0));
    count_refused(
        pair,
        &status.family,
        new(|status| status.refused).unwrap_or(0),
    );
    let now = Instant::now();
    let since = before.and_then(|before| before.read);
    let seconds = since.map_or(0.0, |read| now.duration_since(read).as_secs_f64());
    let rate = counted.filter(|_| seconds > 0.0);
    let rate = rate.map(|counted| counted as f64 / seconds);
    let mut history = before.map_or_else(Vec::new, |before| before.history.clone());
    if history.len() == SAMPLES {
        history.remove(0);
    }
    history.push(Sample {
        at: unix_now(),
        rate,
        pending: status.pending,
        oldest_seconds: status.oldest_seconds.unwrap_or(0.0),
    });
    if history.iter().all(Sample::is_idle) {
        history.clear();
    }
    FamilyView {
        status,
        rate,
        state_since,
        history,
        read: Some(now),
    }
}
