//! The poller of all pairs, once a second.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::look::{Look, ServerStatus};
use crate::sampler::Sampler;
use crate::status::LATE;
use crate::view::FamilyView;

const EVERY: Duration = Duration::from_secs(1);
/// The maximum age of data from MySQL, which is polled less often to spare it.
const MYSQL_AGE: Duration = Duration::from_secs(5);

/// The state of one pair at one moment.
#[derive(Clone, Debug)]
pub struct Shot {
    pub pair: String,
    pub redis: ServerStatus,
    pub mysql: ServerStatus,
    pub families: Vec<FamilyView>,
}

/// Polls each pair in its own task, so that an unavailable one does not delay the others.
pub fn start(looks: Vec<Look>) -> watch::Receiver<Vec<Shot>> {
    let (shots, shown) = watch::channel(Vec::<Shot>::new());
    for mut look in looks {
        let shots = shots.clone();
        tokio::spawn(async move {
            let (mut sampler, mut ticks) = (Sampler::default(), interval(EVERY));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let status = look.now(LATE, MYSQL_AGE).await;
                let families = sampler.sample(status.families);
                let shot = Shot {
                    pair: status.pair,
                    redis: status.redis,
                    mysql: status.mysql,
                    families,
                };
                shots.send_modify(|shots| {
                    match shots.iter_mut().find(|other| other.pair == shot.pair) {
                        Some(other) => *other = shot,
                        None => shots.push(shot),
                    }
                });
            }
        });
    }
    shown
}
