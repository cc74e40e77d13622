//! A reader that runs between other steps.

use super::*;
use crate::support::*;

/// Returns a `Counterfoil` whose reads stop at the gate before each database query. A read may wait
/// there while the database is killed and starts again.
pub fn reading<S: Store + Clone>(
    stage: &Stage<'_, ConnectionManager>,
    database: &Database<'_, S>,
    gate: &Gate,
) -> Counterfoil {
    let store = Wrapped {
        store: database.store.clone(),
        between: gate.clone(),
    };
    Counterfoil::new(stage.redis.clone(), store).read_timeout(secs(60))
}

/// A reader that stops before each database query.
pub struct Reader<T> {
    task: JoinHandle<Result<T>>,
    gate: Gate,
    /// True for each increment that was acknowledged before the reader began.
    before: Vec<bool>,
    pub has_crashed: bool,
}

impl<T: Send + 'static> Reader<T> {
    /// Begins to read, up to the first database query.
    pub async fn begin(
        gate: Gate,
        read: impl Future<Output = Result<T>> + Send + 'static,
        before: Vec<bool>,
    ) -> Self {
        let task = tokio::spawn(read);
        gate.reach(&task).await;
        Reader {
            task,
            gate,
            before,
            has_crashed: false,
        }
    }

    /// Lets the reader's query run, if there is a reader. Returns its result once it ends; after a
    /// crash it may fail.
    pub async fn go_on(reader: &mut Option<Self>) -> Checked<Option<Seen<T>>> {
        let Some(asking) = reader.take() else {
            return Ok(None);
        };
        asking.gate.let_in(&asking.task).await;
        if !asking.task.is_finished() {
            *reader = Some(asking);
            return Ok(None);
        }
        let Reader {
            task,
            before,
            has_crashed,
            ..
        } = asking;
        match task.await? {
            Ok(found) => Ok(Some(Seen {
                found,
                before,
                has_crashed,
            })),
            Err(_) if has_crashed => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// The result of a reader.
pub struct Seen<T> {
    pub found: T,
    before: Vec<bool>,
    has_crashed: bool,
}

impl<T> Seen<T> {
    /// Returns how often the increment with this number must and may be in the result.
    pub fn bounds(&self, token: usize, state: TokenState) -> (u8, u8) {
        let was_acknowledged = self.before.get(token) == Some(&true);
        (
            u8::from(was_acknowledged && state != TokenState::Forgotten && !self.has_crashed),
            1,
        )
    }
}
