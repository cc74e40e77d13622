//! Workers that bring batches to the database.

use counterfoil::test_hooks::CutBatch;

use super::*;
use crate::support::*;

pub const WORKERS: usize = 2;

/// A worker's next step. A worker without a task rotates that partition.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub worker: usize,
    pub partition: u32,
    /// The most ids that the worker applies at a time.
    pub rows: u64,
    pub fate: Fate,
}

impl Work {
    pub const fn delivered(worker: usize, partition: u32) -> Self {
        Work {
            worker,
            partition,
            rows: 1,
            fate: Fate::Delivered,
        }
    }

    pub fn any() -> impl Strategy<Value = Self> {
        let work = |(worker, partition, rows, fate)| Work {
            worker,
            partition,
            rows,
            fate,
        };
        (0..WORKERS, 0..PARTITIONS, 1..=2_u64, fate()).prop_map(work)
    }
}

/// A worker's next step on a batch.
#[derive(Clone, Debug, Default)]
pub enum Task {
    #[default]
    Rotate,
    Fetch(u32, BatchId),
    Apply(Arc<Batch>),
    Release(u32, BatchId),
    /// A reset, since the ledger proves that Redis was set back.
    Reset(u32, BatchId),
}

/// Workers that rotate, fetch, apply in parts and release, or reset.
#[derive(Debug, Default)]
pub struct Workers {
    pub tasks: [Task; WORKERS],
    /// The number of batches that they cut, including cuts whose reply was lost.
    pub cuts: u64,
}

impl Workers {
    pub fn die(&mut self, worker: usize) {
        self.tasks[worker] = Task::default();
    }

    /// Takes a step in a case without set-backs.
    pub async fn step<C: Connect, S: Store + Clone>(
        &mut self,
        work: Work,
        stage: &Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        match self.advance(work, stage, database).await? {
            None => Ok(()),
            Some(dropped) => Err(failed(format!("DROPPED: {dropped:?}"))),
        }
    }

    /// Takes a step, and returns what a reset dropped.
    pub async fn advance<C: Connect, S: Store + Clone>(
        &mut self,
        work: Work,
        stage: &Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked<Option<ResetReply>> {
        let task = self.tasks[work.worker].clone();
        if work.fate == Fate::LostBefore {
            return Ok(None);
        }
        let (next, dropped) = match task {
            Task::Rotate => (self.rotate(work.partition, stage).await?, None),
            Task::Fetch(number, id) => (fetch(number, id, stage).await?, None),
            Task::Apply(batch) => (apply(batch, work, database).await?, None),
            Task::Release(number, id) => {
                stage.partition(number).release(id).await?;
                (Task::Rotate, None)
            }
            Task::Reset(number, id) => {
                let BatchId {
                    incarnation,
                    seq,
                    nonce,
                } = id;
                let proven = LastCut {
                    incarnation: Some(incarnation),
                    seq,
                    nonce: Some(nonce),
                };
                (Task::Rotate, stage.reset(number, proven).await?)
            }
        };
        // after a lost reply the worker repeats the step
        if work.fate == Fate::Delivered {
            self.tasks[work.worker] = next;
        }
        Ok(dropped)
    }

    async fn rotate<C: Connect>(&mut self, number: u32, stage: &Stage<'_, C>) -> Checked<Task> {
        let Registration {
            family, database, ..
        } = &*stage.family;
        let rotated = stage.partition(number);
        let rotated = rotated.rotate(family, database, None, Cut::Now);
        match rotated.await? {
            RotateReply::Batch(CutBatch { id, fresh, .. }) => {
                self.cuts += u64::from(fresh);
                Ok(Task::Fetch(number, id))
            }
            _ => Ok(Task::Rotate),
        }
    }

    /// Brings everything pending in the partition to the database.
    pub async fn drain<C: Connect, S: Store + Clone>(
        &mut self,
        partition: u32,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        // so many rounds suffice for the workers' current tasks, a batch in flight, and the batch
        // that the buffer becomes after it
        for _ in 0..16 {
            for worker in 0..WORKERS {
                stage.pass(SETTLE);
                self.step(Work::delivered(worker, partition), stage, database)
                    .await?;
            }
        }
        Ok(())
    }
}

async fn fetch<C: Connect>(number: u32, id: BatchId, stage: &Stage<'_, C>) -> Checked<Task> {
    let settle = stage.family.family.durability().settle();
    match stage.partition(number).fetch(id, settle, 10).await? {
        FetchReply::Deltas(deltas) => Ok(Task::Apply(Arc::new(Batch {
            family: stage.family.clone(),
            partition: number,
            id,
            deltas,
            is_lost: false,
        }))),
        FetchReply::Wait(_) => Ok(Task::Fetch(number, id)),
        FetchReply::Stale => Ok(Task::Rotate),
    }
}

async fn apply<S: Store + Clone>(
    batch: Arc<Batch>,
    work: Work,
    database: &Database<'_, S>,
) -> Checked<Task> {
    Ok(
        match database.apply(batch.clone(), work.rows, work.fate).await? {
            Some(Progress::Complete | Progress::Repeated) => {
                Task::Release(batch.partition, batch.id)
            }
            Some(Progress::SetBack) => Task::Reset(batch.partition, batch.id),
            Some(Progress::Partial { .. }) | None => Task::Apply(batch),
        },
    )
}
