//! Samples of the families of a pair, from Redis, which turn their counts into rates.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::admin::Overview;
use counterfoil::{Counterfoil, Result};
use tokio::time::sleep;

use crate::metrics::count_hits;
use crate::state::PairState;
use crate::status::{self, FamilyView, LATE, Sample, unix_now};

/// The pause between samples of the families.
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);
/// The pause if there are many families: a sample of 10,000 takes Redis about 100 ms.
const SAMPLE_PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY_FAMILIES: usize = 1_000;
/// The maximum number of samples of a family.
const SAMPLES: usize = 90;

/// Publishes the state of the families, with MySQL's last overview. It needs only Redis, and never
/// returns.
pub async fn sample(counterfoil: Counterfoil, state: Arc<PairState>) {
    loop {
        let overview = state.overview.borrow().clone();
        let mut pause = SAMPLE_PAUSE;
        let result = match sample_all(&counterfoil, &state, &overview).await {
            Ok(families) => {
                if families.len() > MANY_FAMILIES {
                    pause = SAMPLE_PAUSE_OF_MANY;
                }
                publish(&state, families);
                Ok(())
            }
            Err(error) => {
                forget_rates(&state);
                Err(error)
            }
        };
        state.record_read("families", result);
        sleep(pause).await;
    }
}

/// Publishes the families that were read, each with its rate since the last sample.
fn publish(state: &PairState, families: Vec<FamilyView>) {
    let last = state.view.borrow().clone();
    let known: HashMap<_, _> = last
        .families
        .iter()
        .map(|family| (family.sort_key(), family))
        .collect();
    let sampled = families
        .into_iter()
        .map(|family| {
            let before = known.get(&family.sort_key()).copied();
            add_sample(&state.name, family, before)
        })
        .collect();
    state.update(|view| {
        view.families = sampled;
        view.add_total(unix_now());
    });
}

/// Removes the rates after a failed read. Other figures stay, with their age, but a rate is right
/// only at its moment.
fn forget_rates(state: &PairState) {
    let has_rates = state
        .view
        .borrow()
        .families
        .iter()
        .any(|one| one.rate.is_some());
    if has_rates {
        state.update(|view| view.families.iter_mut().for_each(|one| one.rate = None));
    }
}

/// Returns the state of the families that are served, and of the others in the database: another
/// daemon may serve those, or none.
async fn sample_all(
    counterfoil: &Counterfoil,
    state: &PairState,
    overview: &[Overview],
) -> Result<Vec<FamilyView>> {
    let served = counterfoil.backlogs().await?;
    let names: HashSet<_> = served
        .iter()
        .map(|(family, _)| family.to_string())
        .collect();
    let others = counterfoil.backlogs_of(state.known_except(&names)).await?;
    let mut families = status::of_families(served, overview, LATE);
    for other in status::of_families(others, overview, LATE) {
        families.push(FamilyView {
            served: false,
            ..other
        });
    }
    Ok(families)
}

/// Adds the rate and the history to the state of a family, and counts its hits since the state
/// `before`. If the state could not be read, the last figures stay.
fn add_sample(pair: &str, mut family: FamilyView, before: Option<&FamilyView>) -> FamilyView {
    let same = before.filter(|before| before.state == family.state);
    family.state_since = same.map_or_else(unix_now, |before| before.state_since);
    if let (None, Some(before)) = (family.seen, before) {
        return FamilyView {
            state: family.state,
            state_since: family.state_since,
            problem: family.problem,
            rate: None,
            ..before.clone()
        };
    }
    // a count that is lower than before means that Redis has lost hits. All that it still has was
    // counted before, so none of it is new
    let new = |number: fn(&FamilyView) -> Option<u64>| {
        let known = before.and_then(number).unwrap_or(0);
        number(&family).map(|count| count.saturating_sub(known))
    };
    let (counted, refused) = (new(|family| family.counted), new(|family| family.refused));
    count_hits(pair, &family.family, counted, refused);
    let now = Instant::now();
    let last = before.and_then(|before| before.sampled);
    let seconds = last.map_or(0.0, |last| now.duration_since(last).as_secs_f64());
    family.sampled = Some(now);
    family.rate = counted
        .filter(|_| seconds > 0.0)
        .map(|counted| counted as f64 / seconds);
    family.history = before.map_or_else(Vec::new, |before| before.history.clone());
    if family.history.len() == SAMPLES {
        family.history.remove(0);
    }
    family.history.push(family.sample(unix_now()));
    if family.history.iter().all(Sample::is_idle) {
        family.history.clear();
    }
    family
}
