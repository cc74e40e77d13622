//! The overview of a pair in MySQL: rejects, set-backs, recounts, and the differences that these
//! found.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use counterfoil::admin::Reject;
use counterfoil::store::Registration;
use counterfoil::{Counterfoil, MysqlStore, Result};

use super::families::Families;
use crate::rejects::{MAX_COUNTED, ReasonView, RejectView};
use crate::state::PairState;
use crate::status;
use crate::view::{DriftView, RecountView, SetBackView};

/// The maximum number of rejects, and of differences, to show.
const MAX_SHOWN: usize = 20;
/// The maximum number of rejects to log in a minute.
const MAX_LOGGED: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// Repeated reads of the overview.
#[derive(Default)]
pub struct Overviews {
    /// The time of the newest reject that was seen. It is `None` before the first read, which may
    /// have rejects from before the start of the daemon: those are on the page, but not in the log.
    last_reject: Option<SystemTime>,
    /// The beginning of a minute, and the number of rejects that were logged in it.
    logged: Option<(Instant, u32)>,
    /// The run, and its number of differences, at the last read of each family's drift.
    drift_of: BTreeMap<String, (u64, u64)>,
}

impl Overviews {
    /// Reads rejects, set-backs, recounts and their differences, and publishes them.
    pub async fn read(
        &mut self,
        counterfoil: &Counterfoil,
        families: &Families,
        state: &PairState,
    ) -> Result<()> {
        let store = counterfoil.mysql()?;
        let overview = store.overview().await?;
        let latest = store.latest_rejects(MAX_COUNTED).await?;
        let set_backs = store.set_backs().await?;
        self.log(&state.name, &latest);
        let mut recounts = Vec::new();
        for one in &overview {
            let Some(run) = &one.recount else { continue };
            let family = format!("{}/{}", one.namespace, one.family);
            let own = families.recount(&family).filter(|own| own.run == run.run);
            recounts.push(RecountView {
                run: run.run,
                checked: own.map_or(run.checked, |own| own.checked),
                drifted: own.map_or(run.drifted, |own| own.drifted),
                about: own.map(|own| own.about),
                is_configured: families.recounts(&family),
                started: status::unix_seconds(run.started),
                finished: run.finished.map(status::unix_seconds),
                family,
            });
        }
        let mut rejects = RejectView::all(latest);
        let reasons = ReasonView::all(&rejects);
        rejects.truncate(MAX_SHOWN);
        state.overview.send_replace(overview);
        let drift = self.read_drift(store, state, &recounts).await;
        state.update(|view| {
            view.reasons = reasons;
            view.rejects = rejects;
            view.set_backs = SetBackView::all(set_backs);
            view.recounts = recounts;
            view.drift = drift;
        });
        Ok(())
    }

    /// Logs the new rejects of `latest`, which has the newest first. Those beyond the maximum are only
    /// on the page.
    fn log(&mut self, pair: &str, latest: &[Reject]) {
        let newest = latest
            .first()
            .map_or(SystemTime::UNIX_EPOCH, |reject| reject.first_at);
        let last = self.last_reject.unwrap_or(newest);
        self.last_reject = Some(newest.max(last));
        let current = self.logged.filter(|(since, _)| since.elapsed() < MINUTE);
        let (since, mut number) = current.unwrap_or((Instant::now(), 0));
        for reject in latest.iter().rev().filter(|reject| reject.first_at > last) {
            if number == MAX_LOGGED {
                break;
            }
            number += 1;
            tracing::error!(
                pair,
                family = format!("{}/{}", reject.namespace, reject.family),
                id = reject.id,
                delta = reject.delta,
                reason = reject.reason,
                "a row refused a change"
            );
        }
        self.logged = Some((since, number));
    }

    /// Returns the latest differences, with those that current runs found since the last call, and
    /// without those of families that were removed.
    async fn read_drift(
        &mut self,
        store: &MysqlStore,
        state: &PairState,
        recounts: &[RecountView],
    ) -> Vec<DriftView> {
        let mut all = state.view.borrow().drift.clone();
        all.retain(|one| recounts.iter().any(|run| run.family == one.family));
        for recount in recounts {
            let (family, run) = (&recount.family, recount.run);
            let seen = (run, recount.drifted);
            if recount.drifted == 0 || self.drift_of.get(family) == Some(&seen) {
                continue;
            }
            let Some(Registration { family: known, .. }) = state.known(family) else {
                continue;
            };
            let Ok(drift) = store.drift(&known, run, None, MAX_SHOWN as u64).await else {
                continue;
            };
            self.drift_of.insert(family.clone(), seen);
            all.retain(|one| one.family != *family || one.run != run);
            all.extend(DriftView::all(family, run, drift));
        }
        all.sort_by_key(|drift| Reverse(drift.at));
        all.truncate(MAX_SHOWN);
        all
    }
}
