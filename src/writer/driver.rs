//! The tasks and callers that make calls: drivers, one call after another while hits gather, and
//! callers that lead.

use std::pin::pin;
use std::sync::Arc;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::writer::call::{CallOutcome, Sending};
use crate::writer::deadline::SLOW;
use crate::writer::queue::{Queue, Start};

/// A task that makes calls as long as hits wait.
#[derive(Debug)]
pub struct Driver {
    queue: Arc<Queue>,
    sending: Option<Box<Sending>>,
    has_exited: bool,
}

impl Driver {
    pub fn spawn(queue: &Arc<Queue>, starts: impl IntoIterator<Item = Start>) {
        for sending in starts {
            let runtime = queue.register_driver();
            let driver = Driver {
                queue: queue.clone(),
                sending,
                has_exited: false,
            };
            if let Some(runtime) = runtime {
                runtime.spawn(driver.run());
            }
        }
    }

    async fn run(mut self) {
        while !self.has_exited {
            if let Some(sending) = &mut self.sending {
                drive(&self.queue, sending).await;
                // the callers just notified add their next hits first, so that the next call
                // carries more
                yield_now().await;
                self.sending = self
                    .sending
                    .take()
                    .and_then(|ended| self.queue.finish(*ended));
            } else {
                self.has_exited = self.queue.exit_driver();
                if !self.has_exited {
                    sleep(SLOW).await;
                    Self::spawn(&self.queue, self.queue.check_slow(None));
                }
            }
        }
    }
}

/// Hands over the call of a driver whose runtime has ended.
impl Drop for Driver {
    fn drop(&mut self) {
        if !self.has_exited {
            self.queue.orphan(self.sending.take());
        }
    }
}

/// The first caller of a call, which is quicker to make the call itself. No other caller depends on
/// it for long.
#[derive(Debug)]
pub struct Leader {
    queue: Arc<Queue>,
    sending: Option<Box<Sending>>,
}

impl Leader {
    pub async fn lead(queue: &Arc<Queue>, sending: Box<Sending>) {
        let mut leader = Leader {
            queue: queue.clone(),
            sending: Some(sending),
        };
        if let Some(sending) = &mut leader.sending {
            drive(queue, sending).await;
        }
    }
}

/// Runs when the call has ended, or when the leader is dropped halfway.
impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(mut sending) = self.sending.take() {
            sending.give_up(&self.queue);
            let next = self.queue.finish(*sending);
            Driver::spawn(&self.queue, next.map(Some));
        }
    }
}

/// Makes a call until its outcome is known or its deadline has passed. Checks the other calls if
/// that takes long.
async fn drive(queue: &Arc<Queue>, sending: &mut Sending) {
    let (call, reply_by) = (sending.call.clone(), sending.deadline.reply_by);
    {
        let mut made = pin!(async {
            sending.make(queue).await;
            match call.outcome() {
                Some(CallOutcome::NotExecuted(refusal)) => {
                    sleep(queue.refused(&call, refusal.clone())).await;
                }
                _ => queue.accepted(),
            }
        });
        while Instant::now() < reply_by && timeout(SLOW, &mut made).await.is_err() {
            Driver::spawn(queue, queue.check_slow(Some(&call)));
        }
    }
    sending.give_up(queue);
}
