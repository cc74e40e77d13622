//! Retries of open rejects, so that those whose causes are gone are applied.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::reconciler::flush::Flusher;
use crate::reconciler::step::Step;

/// The pause between retries.
const PAUSE: Duration = Duration::from_secs(10);

/// Retries the rejects of the families in use again and again, a page at a time.
pub async fn retry_rejects(flusher: Arc<Flusher>) {
    let shared = &flusher.shared;
    let Some(mysql) = shared.store.as_mysql() else {
        return;
    };
    let mut after = 0;
    loop {
        let retry = async {
            let families = shared.opened();
            let registered: Vec<_> = families.iter().filter_map(|one| one.known()).collect();
            let (next, closed) = mysql.close_rejects(&registered, after).await?;
            after = next;
            closed
        };
        // boxed to keep the task small
        let _ = flusher.noted(Step::Rejects, Box::pin(retry)).await;
        sleep(PAUSE).await;
    }
}
