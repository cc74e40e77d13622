//! The operations of a store beyond the trait `Store`. Each is a function of the module that does the
//! work.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::list::IdPage;
use super::recount::{BeginAttempt, Deviation, Drift, Run, RunStart, RunState};
use super::{
    MysqlStore, Overview, PurgeSummary, Reject, RetrySummary, SetBack, check, deletion, list,
    lookup, overview, recount, rejects, set_backs, source,
};
use crate::error::Result;
use crate::family::Family;
use crate::finding::Finding;
use crate::store::{FamilyNumber, Registration};

/// The operations of operators.
impl MysqlStore {
    /// Checks the database and the families' tables, and returns what an operator should know or
    /// change. It changes nothing and does not fail: an unreachable database is a finding as well.
    pub async fn check(&self, families: &[Family]) -> Vec<Finding> {
        check::findings(self, families).await
    }

    /// Returns the state of every registered family, in the order of registration, by one statement
    /// for any number of families.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn overview(&self) -> Result<Vec<Overview>> {
        overview::read(&self.primary).await
    }

    /// Returns the set-backs of both servers that were found within a day and not acknowledged, in
    /// the order of their families.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn set_backs(&self) -> Result<Vec<SetBack>> {
        set_backs::read(&self.primary).await
    }

    /// Acknowledges the set-backs that were found until this time: they are no problems any more. A
    /// later one is a new problem.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn acknowledge_set_backs(&self, until: SystemTime) -> Result<()> {
        set_backs::acknowledge(&self.primary, until).await
    }

    /// Returns up to `limit` rejects of a family, `NAMESPACE/FAMILY`, or of all families, by family and
    /// id. `after` is the [cursor](Reject::cursor) of the last one of the page before.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if `after` is not a cursor.
    pub async fn rejects(
        &self,
        family: Option<&str>,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Reject>> {
        rejects::list(&self.primary, family, after, limit).await
    }

    /// Returns the latest `limit` rejects, the newest first.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn latest_rejects(&self, limit: u64) -> Result<Vec<Reject>> {
        rejects::latest(&self.primary, limit).await
    }

    /// Adds the rejects of these ids, or all of the family, to their rows. Reconcilers do the same,
    /// a new one within seconds and an old one within an hour. A reject that its row takes exists no
    /// longer. One that is refused again stays, with the new reason.
    ///
    /// Each counts once, however often and by however many processes this is called: row and reject
    /// change in one transaction. A reject that another transaction is changing is left out. A cached
    /// counter that is in Redis shows the delta once its row is read again: with its next sync or
    /// seed.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) or [`Busy`](crate::ErrorKind::Busy): the last transaction
    /// was not kept, or its outcome is unknown. Call again: nothing counts twice.
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family or its table is registered differently.
    pub async fn retry_rejects(
        &self,
        family: &Family,
        ids: Option<&[&str]>,
    ) -> Result<RetrySummary> {
        rejects::retry(self, family, ids).await
    }

    /// Discards the rejects of these ids, or all of the family, `NAMESPACE/FAMILY`: their deltas are
    /// never added. Returns their number. The log has each. If this and
    /// [`retry_rejects`](Self::retry_rejects) run at the same time, one of them takes each reject.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): the last transaction was not kept, or its outcome is
    /// unknown. Call again.
    pub async fn discard_rejects(&self, family: &str, ids: Option<&[&str]>) -> Result<u64> {
        rejects::discard(&self.primary, family, ids).await
    }

    /// Returns up to `limit` counters that a run of the family found different from their rows,
    /// ascending by id, after `after`. `run` is the number from
    /// [`RecountProgress`](crate::recount::RecountProgress). They stay until they are [purged](Self::purge).
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn drift(
        &self,
        family: &Family,
        run: u64,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Drift>> {
        recount::drift(&self.primary, family, run, after, limit).await
    }

    /// Deletes the records of recounts that are older than `age`, in transactions of up to 10,000
    /// rows.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): some records may be deleted already. Call again.
    pub async fn purge(&self, age: Duration) -> Result<PurgeSummary> {
        deletion::old_records(&self.primary, age, true).await
    }

    /// Returns what [`purge`](Self::purge) would delete.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn purgeable(&self, age: Duration) -> Result<PurgeSummary> {
        deletion::old_records(&self.primary, age, false).await
    }
}

/// The operations of recounts, removals, retries and exact reads.
impl MysqlStore {
    /// Leaves the connections to a server that accepts no writes, and refuses it if all lead there.
    pub(crate) async fn leave_replica(&self) -> Result<()> {
        lookup::leave_replica(&self.primary).await
    }

    /// Returns the lag of the server, the longest of all that it replicates, if it is a replica and
    /// this user may read the lag.
    pub(crate) async fn lag(&self) -> Result<Option<Duration>> {
        source::lag(&self.primary).await
    }

    /// Returns up to `limit` ids of the family's counters that come after `after` in the order of
    /// the key columns.
    pub(crate) async fn ids_after(
        &self,
        family: &Registration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<IdPage> {
        let target = self.target(&family.family).await?;
        list::ids_after(&self.primary, &target, family, after, limit).await
    }

    /// Retries rejects whose retries are due. Returns whether there are further ones.
    pub(crate) async fn retry_due(&self, families: &[Arc<Registration>]) -> Result<bool> {
        rejects::retry_due(self, families).await
    }

    /// Begins a run, or takes over one that no process has touched for a while.
    pub(crate) async fn begin_recount(&self, begin: BeginAttempt) -> Result<RunStart> {
        recount::begin(&self.primary, begin).await
    }

    /// Records the progress of the run and its state. Returns `false` if the run is over for this
    /// holder.
    pub(crate) async fn save_recount(&self, run: &Run, state: RunState) -> Result<bool> {
        recount::save(&self.primary, run, state).await
    }

    /// Returns when the family's last finished run ended; `None` if there is none.
    pub(crate) async fn recounted_at(&self, family: &Registration) -> Result<Option<SystemTime>> {
        recount::last_finished(&self.primary, family).await
    }

    /// Returns the approximate number of the family's counters.
    pub(crate) async fn about_counters(&self, family: &Registration) -> Result<u64> {
        recount::about_counters(&self.primary, family).await
    }

    /// Corrects the drifted counters and records them. Returns those that the run has recorded, or
    /// `None` if the run is over for this holder.
    pub(crate) async fn correct(
        &self,
        family: &Registration,
        run: &Run,
        drifted: Vec<Deviation>,
    ) -> Result<Option<Vec<Deviation>>> {
        recount::correct(self, family, run, drifted).await
    }

    /// Returns whether a removal of the family was interrupted while it deleted rows. Otherwise it
    /// refuses a family with rejects.
    pub(crate) async fn is_removing(&self, family: &Family, number: FamilyNumber) -> Result<bool> {
        deletion::was_interrupted(&self.primary, family, number).await
    }

    /// Deletes the rows of a family from counterfoil's tables. An interrupted call can be repeated.
    pub(crate) async fn remove(&self, family: &Family, number: FamilyNumber) -> Result<()> {
        deletion::remove(&self.primary, family, number).await
    }
}
