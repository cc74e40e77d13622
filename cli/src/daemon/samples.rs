//! The families of a pair, looked at again and again: it needs Redis alone, and waits for nothing else.

use std::sync::Arc;
use std::time::Duration;

use counterfoil::{Counterfoil, Overview};
use tokio::sync::watch;
use tokio::time::sleep;

use super::live::LivePair;
use crate::sampler::Sampler;
use crate::status::{LATE, of_families};

const PAUSE: Duration = Duration::from_secs(2);
/// The same between looks at many families: one at 10,000 takes Redis some 100 ms.
const PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY: usize = 1_000;

/// Shows how the families stand, with what MySQL last knew of them. Never ends.
pub async fn watch(counterfoil: Counterfoil, overview: watch::Receiver<Vec<Overview>>, live: Arc<LivePair>) {
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
