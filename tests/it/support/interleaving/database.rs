//! The database of a case, which may be killed.

use counterfoil::test_hooks::ReadReply;

use super::*;
use crate::support::*;

/// The store of a case: in memory, which is faster and so tries more cases, or in a real database.
#[derive(Clone)]
pub struct Database<'s, S> {
    pub store: S,
    /// The store's server, if it is killed now and then.
    mysql: Option<&'s Mortal>,
}

impl<S> Database<'_, S> {
    pub fn new(store: S) -> Self {
        Database { store, mysql: None }
    }
}

impl<'s> Database<'s, MysqlStore> {
    pub async fn mortal(mysql: &'s Mortal) -> Self {
        Database {
            store: MysqlStore::new(&mysql.database().await).unwrap(),
            mysql: Some(mysql),
        }
    }
}

impl<S: Store + Clone> Database<'_, S> {
    /// Applies the next `rows` ids of the batch. Returns its progress unless the reply is lost.
    pub async fn apply(
        &self,
        batch: Arc<Batch>,
        rows: u64,
        fate: Fate,
    ) -> Checked<Option<Progress>> {
        let store = self.store.clone();
        let applying = async move { store.apply(&[batch], Some(rows)).await };
        let applied = match self.mysql {
            Some(mysql) if fate == Fate::LostAfter => mysql.unheard(applying).await.map(|()| None),
            _ => applying
                .await
                .map(|applied| applied.progress.first().copied()),
        };
        Ok(applied?)
    }

    /// Returns the rows of these ids.
    pub async fn rows<C: Connect>(
        &self,
        stage: &Stage<'_, C>,
        ids: &[&str],
    ) -> Checked<Vec<Option<i64>>> {
        Ok(self.store.rows(&stage.family, ids).await?)
    }

    pub async fn ledger<C: Connect>(&self, stage: &Stage<'_, C>) -> Checked<Vec<LedgerRow>> {
        Ok(self.store.ledger(&[stage.family.number]).await?)
    }

    /// Returns the sum of each id in database, batch and buffer.
    pub async fn sums<'i, C: Connect>(
        &self,
        stage: &Stage<'_, C>,
        ids: impl IntoIterator<Item = &'i str>,
    ) -> Checked<BTreeMap<&'i str, i128>> {
        let mut by_partition = BTreeMap::<u32, Vec<&str>>::new();
        for id in ids {
            by_partition
                .entry(stage.partition_of(id))
                .or_default()
                .push(id);
        }
        let mut sums = BTreeMap::new();
        for (number, ids) in by_partition {
            let totals = self
                .totals(
                    stage,
                    (number, stage.partition(number).read(&ids).await?),
                    &ids,
                )
                .await?;
            sums.extend(ids.into_iter().zip(totals));
        }
        Ok(sums)
    }

    /// Returns the sums of ids of one partition with these pending deltas. If the ledger is ahead
    /// of Redis, the pending deltas do not count: a reset will drop them.
    pub async fn totals<C: Connect>(
        &self,
        stage: &Stage<'_, C>,
        (number, pending): (u32, ReadReply),
        ids: &[&str],
    ) -> Checked<Vec<i128>> {
        let LastCut {
            incarnation,
            seq,
            nonce,
        } = pending.last;
        let mark: Vec<_> = incarnation
            .map(|incarnation| (number, incarnation))
            .into_iter()
            .collect();
        let snapshot = self
            .store
            .read(&stage.family, ids, &mark, ReadFrom::Primary)
            .await?;
        let mark = snapshot.ledger.into_iter().next().unwrap_or_default();
        let is_same = mark.seq == seq && (seq == 0 || nonce == Some(mark.nonce));
        let is_behind = mark.seq >= seq && !is_same;
        let total = |((id, value), (batch, buffer)): ((&&str, &Option<i64>), &(i64, i64))| {
            let is_applied = is_same
                && mark
                    .position
                    .as_ref()
                    .is_none_or(|last| id.as_bytes() <= last.as_slice());
            let beside = if pending.in_flight && !is_applied {
                i128::from(*batch)
            } else {
                0
            };
            i128::from(value.unwrap_or(0))
                + if is_behind {
                    0
                } else {
                    i128::from(*buffer) + beside
                }
        };
        Ok(ids
            .iter()
            .zip(&snapshot.values)
            .zip(&pending.deltas)
            .map(total)
            .collect())
    }
}

/// Returns whether the ledger proves that the partition with this last cut was set back.
pub fn is_behind(ledger: &[LedgerRow], number: u32, last: LastCut, without: Option<Guard>) -> bool {
    let is_other = |nonce| last.nonce != Some(nonce) && without != Some(Guard::Nonce);
    ledger.iter().filter(|row| row.partition == number).any(
        |LedgerRow {
             incarnation, mark, ..
         }| {
            let is_later = last.seq < mark.seq || (last.seq == mark.seq && is_other(mark.nonce));
            Some(*incarnation) == last.incarnation && is_later
        },
    )
}

/// A MySQL that may be killed now and then during work whose reply is lost.
pub struct Mortal {
    server: MysqlServer,
    one_in: u64,
    unheard: AtomicU64,
}

impl Mortal {
    /// Starts a server that is killed during one of every `one_in` such calls.
    pub async fn one_in(one_in: u64) -> Self {
        Mortal {
            server: MysqlServer::start().await,
            one_in,
            unheard: AtomicU64::new(0),
        }
    }

    /// Creates a database with counterfoil's tables.
    pub async fn database(&self) -> MySqlPool {
        database_on(&self.server).await
    }

    /// Does work whose reply is lost. Now and then the server is killed meanwhile.
    pub async fn unheard<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<()> {
        let number = self.unheard.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(self.one_in) {
            return work.await.map(drop);
        }
        let working = tokio::spawn(work);
        tokio::time::sleep(Duration::from_micros(number * 97 % 3000)).await;
        self.server.kill();
        self.server.start_again().await;
        let _either_way = working.await;
        Ok(())
    }
}
