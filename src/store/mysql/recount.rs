//! The runs of recounts and their corrections. One transaction contains a correction, its record
//! and its run's row (docs/protocol.md, section 9).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::MysqlStore;
use super::add::{self, Refused};
use super::families;
use super::json::{self, I64, ID, INPUT, hex};
use super::rejects;
use super::session::{Database, Session, UnitOfWork};
use super::statement::{Statement, of_table, text, time, unix_ms};
use super::target::Target;
use crate::error::Result;
use crate::family::Family;
use crate::store::{FamilyNumber, Registration};
use crate::testing::ablation::{self, Guard};

/// A run of a recount that this process works on.
#[derive(Clone, Debug)]
pub struct Run {
    family: FamilyNumber,
    pub(crate) number: u64,
    /// A random number of the process that works on the run.
    holder: u64,
    pub(crate) at: Cursor,
    pub(crate) checked: u64,
    pub(crate) drifted: u64,
}

/// The state of a run after its holder's last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The holder continues.
    Held,
    /// Another process may continue it at once.
    Left,
    /// The next run may begin.
    Finished,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// `true` once the run has passed the counters and checks the source's ids.
    pub from_source: bool,
    pub after: Option<String>,
}

/// The result of an attempt to begin a run.
#[derive(Debug)]
pub enum RunStart {
    Run(Run),
    /// Another process works on the run.
    Held,
    /// The next run is due after this time.
    Early(Duration),
}

/// An id whose counter differs from its rows, with the correction.
#[derive(Clone, Debug)]
pub struct Deviation {
    pub id: String,
    pub before: i64,
    pub rows: i64,
    pub after: i64,
    pub delta: i64,
    /// The reason if nothing is added.
    pub only_noted: Option<&'static str>,
}

/// The drift of one counter, as a recount found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// The counter.
    pub id: String,
    /// Its exact value before the rows were counted.
    pub before: i64,
    /// The number of its rows, or their sum.
    pub rows: i64,
    /// Its exact value afterwards.
    pub after: i64,
    /// The delta that was added; 0 if none was.
    pub delta: i64,
    /// The reason why nothing was added, in the server's words if it refused; empty if the counter
    /// was corrected.
    pub note: String,
    /// The time of the record, by the database's clock.
    pub at: SystemTime,
}

/// The condition of a row of `counterfoil_drift` that is a drift, and not a note that rejects were taken.
const IS_DRIFT: &str = "(d.value_before <> d.row_count OR d.value_after <> d.row_count)";

/// Reads up to `limit` counters that a run of the family found different from their rows, ascending by
/// id, after `after`.
pub async fn drift(
    database: &Database,
    family: &Family,
    run: u64,
    after: Option<&str>,
    limit: u64,
) -> Result<Vec<Drift>> {
    let select = Statement::new(format!(
        "SELECT id, value_before, row_count, value_after, delta, note, {} FROM counterfoil_drift AS d \
         WHERE family = (SELECT number FROM counterfoil_families WHERE namespace = ? AND name = ?) \
         AND run = ? AND id > ? AND {IS_DRIFT} ORDER BY id LIMIT ?",
        unix_ms("found_at")
    ))
    .bind(family.namespace.as_bytes())
    .bind(family.name.as_bytes())
    .bind(run)
    .bind(after.unwrap_or_default().as_bytes())
    .bind(limit);
    let rows = database.read("drift was not read", select).await?;
    Ok(rows
        .into_iter()
        .map(|(id, before, rows, after, delta, note, at)| Drift {
            id: text(id),
            before,
            rows,
            after,
            delta,
            note,
            at: time(at),
        })
        .collect())
}

/// Begins a run, or takes over one that no process has touched for a while.
pub async fn begin(database: &Database, begin: BeginAttempt) -> Result<RunStart> {
    database.transact("a recount was not begun", begin).await
}

/// Records the progress of the run and its state. Returns `false` if the run is over for this holder.
pub async fn save(database: &Database, run: &Run, state: RunState) -> Result<bool> {
    const UPDATE: &str = "UPDATE counterfoil_recounts \
         SET from_source = ?, last_id = ?, checked = ?, drifted = ?, touched_at = CURRENT_TIMESTAMP(3), \
         holder = IF(?, holder, 0), finished_at = IF(?, CURRENT_TIMESTAMP(3), NULL) \
         WHERE family = ? AND run = ? AND holder = ? AND finished_at IS NULL";
    let update = Statement::new(UPDATE)
        .bind(run.at.from_source)
        .bind(run.at.after.as_ref().map(|id| id.as_bytes()))
        .bind(run.checked)
        .bind(run.drifted)
        .bind(state == RunState::Held)
        .bind(state == RunState::Finished)
        .bind(run.family)
        .bind(run.number)
        .bind(run.holder);
    // sqlx asks the server to count the rows found, also those that do not change
    let found = database
        .transact("a recount's run was not written", update)
        .await?;
    Ok(found == 1)
}

/// Returns when the family's last finished run ended; `None` if there is none.
pub async fn last_finished(
    database: &Database,
    family: &Registration,
) -> Result<Option<SystemTime>> {
    let select = Statement::new(format!(
        "SELECT MAX({}) FROM counterfoil_recounts WHERE family = ?",
        unix_ms("finished_at")
    ))
    .bind(family.number);
    let (finished,): (Option<u64>,) = database.read_one("recounts were not read", select).await?;
    Ok(finished.map(time))
}

/// Returns the approximate number of the family's counters.
pub async fn about_counters(database: &Database, family: &Registration) -> Result<u64> {
    const OWN: &str = "SELECT CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_values WHERE family = ?";
    const TABLE: &str = "CAST(COALESCE(MAX(TABLE_ROWS), 0) AS UNSIGNED)";
    let select = match &family.family.table {
        None => Statement::new(OWN).bind(family.number),
        Some(table) => of_table(TABLE, "TABLES", &table.name),
    };
    let (number,) = database
        .read_one("counters were not counted", select)
        .await?;
    Ok(number)
}

/// Corrects the drifted counters and records them, each id once per run. Leaves out counters that have
/// rejects, or had some that were taken since the run began. Returns those that the run has recorded,
/// now or before: the commit may have had no reply. Does nothing and returns `None` if the run is over
/// for this holder.
pub async fn correct(
    mysql: &MysqlStore,
    family: &Registration,
    run: &Run,
    drifted: Vec<Deviation>,
) -> Result<Option<Vec<Deviation>>> {
    let correct = CorrectionTransaction {
        // a test removes a guard for its own thread, so this is read before the work moves to a task
        out: ablation::out(),
        target: mysql.target(&family.family).await?,
        family: family.clone(),
        run: run.clone(),
        drifted,
    };
    let failed = "counters were not corrected";
    mysql.primary.transact(failed, correct).await
}

/// An attempt to begin a run.
pub struct BeginAttempt {
    pub family: Arc<Registration>,
    /// A random number of this process.
    pub holder: u64,
    /// The time after which a run that no process has touched is taken over.
    pub lease: Duration,
    /// The time that must have passed since the last run began.
    pub every: Duration,
}

impl UnitOfWork for BeginAttempt {
    type Output = RunStart;

    async fn run(&self, transaction: &mut Session) -> Result<RunStart, sqlx::Error> {
        const LAST: &str = "SELECT run, holder, finished_at IS NOT NULL, \
             ABS(TIMESTAMPDIFF(MICROSECOND, started_at, CURRENT_TIMESTAMP(3))), \
             ABS(TIMESTAMPDIFF(MICROSECOND, touched_at, CURRENT_TIMESTAMP(3))), from_source, last_id, \
             checked, drifted FROM counterfoil_recounts WHERE family = ? ORDER BY run DESC LIMIT 1 FOR UPDATE";
        const TAKE: &str = "UPDATE counterfoil_recounts SET holder = ?, touched_at = CURRENT_TIMESTAMP(3) \
             WHERE family = ? AND run = ?";
        const INSERT: &str =
            "INSERT INTO counterfoil_recounts (holder, family, run) VALUES (?, ?, ?)";
        let mut run = Run {
            family: self.family.number,
            number: 1,
            holder: self.holder,
            at: Cursor::default(),
            checked: 0,
            drifted: 0,
        };
        let mut write = INSERT;
        // if two processes begin a run, the second waits here and finds the first one's run
        families::refuse_unregistered(transaction, &self.family, "FOR UPDATE").await?;
        let select = Statement::new(LAST).bind(self.family.number);
        if let Some((
            number,
            holder,
            is_finished,
            started,
            touched,
            from_source,
            after,
            checked,
            drifted,
        )) = transaction.fetch(select).await?.pop()
        {
            let (number, holder, after): (u64, u64, Option<Vec<u8>>) = (number, holder, after);
            if is_finished {
                let left = self.every.saturating_sub(age(started));
                if !left.is_zero() {
                    return Ok(RunStart::Early(left));
                }
                run.number = number + 1;
            } else {
                if holder != 0 && age(touched) < self.lease {
                    return Ok(RunStart::Held);
                }
                (run.number, run.checked, run.drifted) = (number, checked, drifted);
                run.at = Cursor {
                    from_source,
                    after: after.and_then(|id| String::from_utf8(id).ok()),
                };
                write = TAKE;
            }
        }
        let statement = Statement::new(write)
            .bind(run.holder)
            .bind(run.family)
            .bind(run.number);
        transaction.execute(statement).await?;
        Ok(RunStart::Run(run))
    }
}

/// Returns the age of a run from its microseconds. A clock that stepped makes a run look old. It is
/// then begun or taken over too early, which costs only work.
fn age(us: i64) -> Duration {
    Duration::from_micros(us.unsigned_abs())
}

struct CorrectionTransaction {
    target: Arc<Target>,
    family: Registration,
    run: Run,
    drifted: Vec<Deviation>,
    out: Option<Guard>,
}

impl UnitOfWork for CorrectionTransaction {
    type Output = Option<Vec<Deviation>>;

    async fn run(&self, transaction: &mut Session) -> Result<Self::Output, sqlx::Error> {
        families::refuse_unregistered(transaction, &self.family, families::SHARED).await?;
        let mut recorded = HashMap::new();
        if self.out != Some(Guard::RecountRun) {
            if !self.lock_run(transaction).await? {
                return Ok(None);
            }
            // rejects are read first: one that is taken in between is noted in what is read next
            let rejected = self.find_rejected(transaction).await?;
            recorded = self.find_recorded(transaction).await?;
            if self.out == Some(Guard::RecountRejects) {
                recorded.retain(|_, delta| delta.is_some());
            } else {
                recorded.extend(rejected.into_iter().map(|id| (id, None)));
            }
        }
        let (mut open, mut noted) = (Vec::new(), Vec::new());
        for mut one in self.drifted.iter().cloned() {
            match recorded.get(one.id.as_bytes()) {
                None => open.push(one),
                Some(None) => {}
                Some(Some(delta)) => {
                    one.delta = *delta;
                    noted.push(one);
                }
            }
        }
        let to_add = open
            .iter()
            .enumerate()
            .filter(|(_, one)| one.only_noted.is_none() && one.delta != 0)
            .map(|(index, one)| (index, one.id.as_bytes(), one.delta));
        let mut refused = Refused::new();
        let (family, target) = (&self.family, &self.target);
        let locked = add::add_unlocked(transaction, family, target, to_add, &mut refused).await?;
        let mut records = Vec::new();
        for (index, mut one) in open.into_iter().enumerate() {
            // another transaction has locked the row: it is left for the next run
            if locked.contains(&index) {
                continue;
            }
            let refusal = refused.get(&index).map(|refusal| &*refusal.reason);
            let reason = one.only_noted.or(refusal);
            if reason.is_some() {
                one.delta = 0;
            }
            records.push((
                one.before,
                one.rows,
                one.after,
                one.delta,
                hex(&one.id),
                hex(rejects::short(reason.unwrap_or_default())),
            ));
            noted.push(one);
        }
        let columns = [
            ("value_before", I64),
            ("row_count", I64),
            ("value_after", I64),
            ("delta", I64),
            ("id", ID),
            ("reason", json::REASON),
        ];
        let insert = Statement::new(format!(
            "INSERT INTO counterfoil_drift (family, run, id, value_before, row_count, value_after, delta, note) \
             SELECT ?, ?, UNHEX(id), value_before, row_count, value_after, delta, {} FROM {} \
             ON DUPLICATE KEY UPDATE counterfoil_drift.delta = counterfoil_drift.delta + {INPUT}.delta",
            rejects::REASON,
            json::table(columns)
        ))
        .bind(self.family.number)
        .bind(self.run.number)
        .bind_rows(records);
        transaction.execute(insert).await?;
        Ok(Some(noted))
    }
}

impl CorrectionTransaction {
    /// Locks the run's row. Returns `true` if the run is still this holder's, and so stays until the
    /// transaction ends.
    async fn lock_run(&self, transaction: &mut Session) -> Result<bool, sqlx::Error> {
        const HELD: &str = "SELECT run FROM counterfoil_recounts \
             WHERE family = ? AND run = ? AND holder = ? AND finished_at IS NULL FOR UPDATE";
        let Run {
            family,
            number,
            holder,
            ..
        } = self.run;
        let select = Statement::new(HELD).bind(family).bind(number).bind(holder);
        Ok(!transaction.fetch::<()>(select).await?.is_empty())
    }

    /// Returns the ids that have rejects. Values do not contain these hits, which may still be added.
    async fn find_rejected(&self, transaction: &mut Session) -> Result<Vec<Vec<u8>>, sqlx::Error> {
        let select = Statement::new(format!(
            "SELECT r.id FROM {} STRAIGHT_JOIN {}",
            json::table([("id", ID)]),
            rejects::BY_ID
        ))
        .bind_rows(self.drifted.iter().map(|one| (hex(&one.id),)))
        .bind(self.run.family);
        let rows = transaction.fetch(select).await?.into_iter();
        Ok(rows.map(|(id,)| id).collect())
    }

    /// Returns the ids that the run has already recorded, with the deltas that it added; `None` for an
    /// id whose rejects were taken since the run began.
    async fn find_recorded(
        &self,
        transaction: &mut Session,
    ) -> Result<HashMap<Vec<u8>, Option<i64>>, sqlx::Error> {
        let select = Statement::new(format!(
            "SELECT d.id, IF({IS_DRIFT}, d.delta, NULL) FROM {} STRAIGHT_JOIN counterfoil_drift AS d \
             ON d.family = ? AND d.run = ? AND d.id = UNHEX({INPUT}.id)",
            json::table([("id", ID)])
        ))
        .bind_rows(self.drifted.iter().map(|one| (hex(&one.id),)))
        .bind(self.run.family)
        .bind(self.run.number);
        Ok(transaction.fetch(select).await?.into_iter().collect())
    }
}
