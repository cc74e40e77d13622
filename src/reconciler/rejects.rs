//! Retries of open rejects, so that those whose causes are gone are applied.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::Result;
use crate::process::shared::Shared;
use crate::reconciler::flush::Flusher;
use crate::reconciler::step::Step;

/// The pause between retries.
const PAUSE: Duration = Duration::from_secs(10);

/// Retries the rejects of the families in use again and again, a page at a time.
pub async fn retry_rejects(flusher: Arc<Flusher>) {
    let mut after = 0;
    loop {
        let retry = async {
            let (next, closed) = retry_page(&flusher.shared, after).await?;
            after = next;
            closed
        };
        // boxed to keep the task small
        let _ = flusher.noted(Step::Rejects, Box::pin(retry)).await;
        sleep(PAUSE).await;
    }
}

/// Retries the rejects after this number. Returns the number to continue after, 0 at the end, and
/// the first error of a family.
async fn retry_page(shared: &Shared, after: u64) -> Result<(u64, Result<()>)> {
    let Some(mysql) = shared.store.as_mysql() else {
        return Ok((0, Ok(())));
    };
    let families = shared.opened();
    let registered = families.iter().filter_map(|one| one.known());
    let registered: Vec<_> = registered.collect();
    mysql.close_rejects(&registered, after).await
}
