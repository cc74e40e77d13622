//! Retries of rejects, so that those whose reasons are gone are added to their rows.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::reconciler::flusher::Flusher;
use crate::reconciler::step::Step;

/// The pause between retries.
const PAUSE: Duration = Duration::from_secs(5);
/// The shortest pause while further retries are due. The pause is as long as the last retries took,
/// so that the database has as much time for other work.
const SHORT_PAUSE: Duration = Duration::from_millis(20);

/// Retries the due rejects of the families in use again and again, a page of each family at a time.
pub async fn retry_rejects(flusher: Arc<Flusher>) {
    let shared = &flusher.shared;
    let Some(mysql) = shared.store.as_mysql() else {
        return;
    };
    loop {
        let begun = Instant::now();
        let retry = async {
            let families = shared.opened();
            let registered: Vec<_> = families.iter().filter_map(|one| one.known()).collect();
            mysql.retry_due(&registered).await
        };
        // boxed to keep the task small
        let has_more = flusher.noted(Step::Rejects, Box::pin(retry)).await;
        sleep(match has_more {
            Ok(true) => begun.elapsed().clamp(SHORT_PAUSE, PAUSE),
            _ => PAUSE,
        })
        .await;
    }
}
