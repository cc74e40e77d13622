//! Those who bring batches to the database.

use std::time::Duration;

use counterfoil::test_hooks::{Cut, CutBatch, FetchReply, RotateReply};
use counterfoil::{Batch, Durability, Incarnation, Result, Store};
use proptest::prelude::Strategy;
use proptest::test_runner::TestCaseError;

use super::connect::Connect;
use super::database::Database;
use super::stage::Stage;
use super::{Checked, Fate, PARTITIONS, SETTLE, failed, fate};

pub const WORKERS: usize = 2;

/// A worker's next step. Whoever has nothing in hand looks at that partition.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub worker: usize,
    pub partition: u32,
    pub fate: Fate,
}

impl Work {
    pub const fn delivered(worker: usize, partition: u32) -> Self {
        Work { worker, partition, fate: Fate::Delivered }
    }

    pub fn any() -> impl Strategy<Value = Self> {
        (0..WORKERS, 0..PARTITIONS, fate()).prop_map(|(worker, partition, fate)| Work { worker, partition, fate })
    }
}

/// What a worker does next, and with which batch of which partition.
#[derive(Debug, Default)]
enum Task {
    #[default]
    Rotate,
    Fetch(u32, CutBatch),
    Apply(Batch, CutBatch),
    Release(u32, CutBatch),
}

/// Those who bring batches to the database: they rotate, fetch, apply and release.
#[derive(Debug, Default)]
pub struct Workers {
    tasks: [Task; WORKERS],
    /// How many batches they cut, also where they did not hear of it.
    pub cuts: u64,
}

impl Workers {
    pub fn die(&mut self, worker: usize) {
        self.tasks[worker] = Task::default();
    }

    pub async fn step<C: Connect, S: Store + Clone>(
        &mut self,
        work: Work,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        let task = std::mem::take(&mut self.tasks[work.worker]);
        self.tasks[work.worker] = match work.fate {
            Fate::LostBefore => task,
            Fate::Delivered => self.execute(&task, work, stage, database).await?,
            // whatever it did, it is done again
            Fate::LostAfter => {
                self.execute(&task, work, stage, database).await?;
                task
            }
        };
        Ok(())
    }

    /// Returns what comes next.
    async fn execute<C: Connect, S: Store + Clone>(
        &mut self,
        task: &Task,
        work: Work,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Result<Task, TestCaseError> {
        match task {
            Task::Rotate => self.rotate(work.partition, stage).await,
            Task::Fetch(number, cut) => fetch(*number, *cut, stage).await,
            Task::Apply(batch, cut) => {
                database.apply(batch.clone(), work.fate).await?;
                Ok(Task::Release(batch.partition, *cut))
            }
            Task::Release(number, cut) => {
                stage.partition(*number).release(cut).await.map_err(failed)?;
                Ok(Task::Rotate)
            }
        }
    }

    async fn rotate<C: Connect>(&mut self, number: u32, stage: &mut Stage<'_, C>) -> Result<Task, TestCaseError> {
        let incarnation = Incarnation(stage.new_name());
        match stage.partition(number).rotate(incarnation, None, Cut::Now).await.map_err(failed)? {
            RotateReply::Batch(cut) => {
                self.cuts += u64::from(cut.fresh);
                Ok(Task::Fetch(number, cut))
            }
            _ => Ok(Task::Rotate),
        }
    }

    /// Brings everything that waits in the partition to the database.
    pub async fn drain<C: Connect, S: Store + Clone>(
        &mut self,
        partition: u32,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        // one batch may be there, and the buffer behind it; then the workers' own
        for _ in 0..16 {
            for worker in 0..WORKERS {
                stage.pass(SETTLE);
                self.step(Work::delivered(worker, partition), stage, database).await?;
            }
        }
        Ok(())
    }
}

async fn fetch<C: Connect>(number: u32, cut: CutBatch, stage: &Stage<'_, C>) -> Result<Task, TestCaseError> {
    let settle = match stage.family.family.durability() {
        Durability::Settle(time) => time,
        _ => Duration::ZERO,
    };
    match stage.partition(number).fetch(&cut, settle, 10).await.map_err(failed)? {
        FetchReply::Deltas { deltas, foreign } => {
            let (family, CutBatch { incarnation, seq, .. }) = (stage.family.clone(), cut);
            Ok(Task::Apply(Batch { family, partition: number, incarnation, seq, deltas, foreign }, cut))
        }
        FetchReply::Wait(_) => Ok(Task::Fetch(number, cut)),
        FetchReply::Stale => Ok(Task::Rotate),
    }
}
