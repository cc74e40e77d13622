//! Somebody who reads while the others go on.

use counterfoil::Result;
use proptest::test_runner::TestCaseError;
use tokio::task::JoinHandle;

use super::failed;
use super::token::State;
use crate::support::between::Gate;

/// A reader that stands still before each question to the database.
pub struct Reader<T> {
    task: JoinHandle<Result<T>>,
    gate: Gate,
    /// Which increments were acknowledged before it began.
    before: Vec<bool>,
    pub has_crashed: bool,
}

impl<T: Send + 'static> Reader<T> {
    /// Begins to read, and comes to its first question.
    pub async fn begin(gate: Gate, read: impl Future<Output = Result<T>> + Send + 'static, before: Vec<bool>) -> Self {
        let task = tokio::spawn(read);
        gate.reach(&task).await;
        Reader { task, gate, before, has_crashed: false }
    }

    /// Lets the question of the reader through, if there is one. Returns what it has read once it is through; in a crash
    /// it may fail.
    pub async fn go_on(reader: &mut Option<Self>) -> Result<Option<Seen<T>>, TestCaseError> {
        let Some(asking) = reader.take() else { return Ok(None) };
        asking.gate.let_in(&asking.task).await;
        if !asking.task.is_finished() {
            *reader = Some(asking);
            return Ok(None);
        }
        let Reader { task, before, has_crashed, .. } = asking;
        match task.await.map_err(failed)? {
            Ok(found) => Ok(Some(Seen { found, before, has_crashed })),
            Err(_) if has_crashed => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// What a reader has read.
pub struct Seen<T> {
    pub found: T,
    before: Vec<bool>,
    has_crashed: bool,
}

impl<T> Seen<T> {
    /// How often the increment of that number has to be in it, and may be.
    pub fn bounds(&self, token: usize, state: State) -> (u8, u8) {
        let was_acknowledged = self.before.get(token) == Some(&true);
        (u8::from(was_acknowledged && state != State::Forgotten && !self.has_crashed), 1)
    }
}
