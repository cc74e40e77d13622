//! The sampling of a pair's families. It needs only Redis, and waits for nothing else.

use std::sync::Arc;
use std::time::Duration;

use counterfoil::Counterfoil;
use counterfoil::admin::Overview;
use tokio::sync::watch;
use tokio::time::sleep;

use super::live::LivePair;
use crate::sampler::Sampler;
use crate::status::{LATE, of_families};

const PAUSE: Duration = Duration::from_secs(2);
/// The pause between samples of many families: one of 10,000 families takes Redis about 100 ms.
const PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY: usize = 1_000;

/// Publishes the state of the families, with MySQL's last overview. Never returns.
pub async fn watch(
    counterfoil: Counterfoil,
    overview: watch::Receiver<Vec<Overview>>,
    live: Arc<LivePair>,
) {
    let mut sampler = Sampler::default();
    loop {
        let overview = overview.borrow().clone();
        let mut pause = PAUSE;
        if let Ok(families) = of_families(&counterfoil, &overview, LATE).await {
            if families.len() > MANY {
                pause = PAUSE_OF_MANY;
            }
            let families = sampler.sample(families);
            live.show(|view| view.families = families);
        }
        sleep(pause).await;
    }
}
