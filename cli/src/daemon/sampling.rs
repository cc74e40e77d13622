//! Samples of the families of a pair, from Redis.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use counterfoil::admin::Overview;
use counterfoil::{Counterfoil, Result};
use tokio::sync::watch;
use tokio::time::sleep;

use super::state::PairState;
use crate::status::{self, FamilyStatus, LATE, unix_now};

/// The pause between samples of the families.
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);
/// The pause if there are many families: a sample of 10,000 takes Redis about 100 ms.
const SAMPLE_PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY_FAMILIES: usize = 1_000;

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
            let sampler = state.sampler.lock();
            let families = sampler
                .unwrap_or_else(PoisonError::into_inner)
                .sample(families);
            state.update(|view| {
                view.families = families;
                view.add_total(unix_now());
            });
        });
        state.looked("families", |looks| &mut looks.families, read);
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
