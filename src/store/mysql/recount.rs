//! The runs of recounts and their corrections. One transaction contains a correction, its record
//! and its run's row (docs/protocol.md, section 9).

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};

use super::MysqlStore;
use super::add::{self, Refused};
use super::fault::store;
use super::json::{self, INPUT, JsonRows};
use super::rejects::{self, text, time};
use super::session::{Transaction, UnitOfWork, detached};
use super::statement::{Statement, Text, schema_and_name};
use super::target::Target;
use crate::error::Result;
use crate::family::Family;
use crate::store::{Registered, Store};

/// A run of a recount that this process works on.
#[derive(Clone, Debug)]
pub struct Run {
    pub(crate) number: u64,
    /// A random number of the process that works on the run.
    pub(crate) holder: u64,
    pub(crate) at: Cursor,
    pub(crate) checked: u64,
    pub(crate) drifted: u64,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// `true` once the run has passed the counters and checks the source's ids.
    pub(crate) from_source: bool,
    pub(crate) after: Option<String>,
}

/// The result of an attempt to begin a run.
#[derive(Debug)]
pub(crate) enum Begun {
    Run(Run),
    /// Another process works on the run.
    Held,
    /// The next run is due after this time.
    Early(Duration),
}

/// An id whose counter differs from its rows, with the correction.
#[derive(Clone, Debug)]
pub(crate) struct Drifted {
    pub(crate) id: String,
    pub(crate) before: i64,
    pub(crate) rows: i64,
    pub(crate) after: i64,
    pub(crate) delta: i64,
    /// The reason if nothing is added.
    pub(crate) only_noted: Option<&'static str>,
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

impl MysqlStore {
    /// Returns up to `limit` counters that a run of the family found different from their rows,
    /// ascending by id, after `after`. `run` is the number from [`Recounted`](crate::recount::Recounted).
    /// The records stay until an operator deletes them from `counterfoil_drift`.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable;
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family is registered differently.
    pub async fn drift(
        &self,
        family: &Family,
        run: u64,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Drift>> {
        const READ: &str = "SELECT id, value_before, row_count, value_after, delta, note, \
             CAST(UNIX_TIMESTAMP(found_at) * 1000 AS UNSIGNED) FROM counterfoil_drift \
             WHERE family = ? AND run = ? AND id > ? ORDER BY id LIMIT ?";
        let (mysql, family, after) = (
            self.clone(),
            family.clone(),
            after.unwrap_or_default().to_owned(),
        );
        detached(async move {
            let number = mysql.register(&family).await?;
            let query = || {
                let query = sqlx::query(READ).bind(number).bind(run);
                query.bind(after.as_bytes()).bind(limit)
            };
            let drift = mysql.primary.fetch_each(query, drift);
            drift.await.map_err(store("drift was not read"))
        })
        .await
    }

    /// Begins a run, or takes over one that no process has touched for `lease`. With `every`,
    /// begins a run only if the last one began that long ago.
    pub(crate) async fn begin_recount(
        &self,
        family: &Registered,
        holder: u64,
        lease: Duration,
        every: Option<Duration>,
    ) -> Result<Begun> {
        let (mysql, family) = (self.clone(), family.number);
        let begin = Begin {
            family,
            holder,
            lease,
            every,
        };
        detached(async move {
            mysql
                .primary
                .transact("a recount was not begun", &begin)
                .await
        })
        .await
    }

    /// Records the run's progress. Returns `false` if the run is over for this holder.
    pub(crate) async fn note_recount(&self, family: &Registered, run: &Run) -> Result<bool> {
        self.touch(family, run, run.holder, "NULL").await
    }

    /// Finishes the run, so that the next one may begin.
    pub(crate) async fn finish_recount(&self, family: &Registered, run: &Run) -> Result<bool> {
        self.touch(family, run, 0, "CURRENT_TIMESTAMP(3)").await
    }

    async fn touch(
        &self,
        family: &Registered,
        run: &Run,
        holder: u64,
        finished_at: &'static str,
    ) -> Result<bool> {
        let set = format!(
            "from_source = ?, last_id = ?, checked = ?, drifted = ?, holder = ?, \
             touched_at = CURRENT_TIMESTAMP(3), finished_at = {finished_at}"
        );
        let bind = |query: Statement| {
            query
                .bind(run.at.from_source)
                .bind(run.at.after.as_ref().map(|id| id.as_bytes().to_vec()))
                .bind(run.checked)
                .bind(run.drifted)
                .bind(holder)
        };
        self.set(family, run, &set, bind).await
    }

    /// Leaves the run, so that another process may continue it at once.
    pub(crate) async fn leave_recount(&self, family: &Registered, run: &Run) -> Result<bool> {
        self.set(family, run, "holder = 0", |query| query).await
    }

    /// Updates the run's row unless the run is over for this holder. Returns `false` then.
    async fn set(
        &self,
        family: &Registered,
        run: &Run,
        set: &str,
        bind: impl Fn(Statement) -> Statement,
    ) -> Result<bool> {
        let text = format!(
            "UPDATE counterfoil_recounts SET {set} \
             WHERE family = ? AND run = ? AND holder = ? AND finished_at IS NULL"
        );
        let query = bind(sqlx::query(AssertSqlSafe(text)));
        let query = query.bind(family.number).bind(run.number).bind(run.holder);
        let database = self.primary.clone();
        detached(async move {
            let updated = database.execute(query).await;
            // sqlx asks the server for rows found
            Ok(updated.map_err(store("a recount's run was not written"))? == 1)
        })
        .await
    }

    /// Corrects one counter in a run of its own, and finishes the run.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub async fn correct_one(&self, family: &Registered, id: &str, delta: i64) -> Result<()> {
        if let Begun::Run(mut run) = self.begin_recount(family, 1, Duration::ZERO, None).await? {
            let drifted = Drifted {
                id: id.to_owned(),
                before: 0,
                rows: delta,
                after: 0,
                delta,
                only_noted: None,
            };
            self.correct(family, &run, vec![drifted], false).await?;
            run.checked += 1;
            self.note_recount(family, &run).await?;
            self.finish_recount(family, &run).await?;
            self.drift(&family.family, run.number, None, 10).await?;
        }
        Ok(())
    }

    /// Returns the time since the family's last finished run ended; `None` if there is none.
    pub(crate) async fn recounted_ago(&self, family: &Registered) -> Result<Option<Duration>> {
        const AGE: &str = "SELECT CAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, MAX(finished_at), CURRENT_TIMESTAMP(3)), 0) \
             AS UNSIGNED) FROM counterfoil_recounts WHERE family = ?";
        let query = || sqlx::query(AGE).bind(family.number);
        let age: Option<u64> = self.number(query, "recounts were not read").await?;
        Ok(age.map(Duration::from_micros))
    }

    /// Returns the approximate number of the family's counters.
    pub(crate) async fn about_counters(&self, family: &Registered) -> Result<u64> {
        const OWN: &str =
            "SELECT CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_values WHERE family = ?";
        const TABLE: &str = "SELECT CAST(COALESCE(MAX(TABLE_ROWS), 0) AS UNSIGNED) FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?";
        let query = || match &family.family.table {
            None => sqlx::query(OWN).bind(family.number),
            Some(table) => {
                let (schema, name) = schema_and_name(&table.name);
                sqlx::query(TABLE).bind(schema).bind(name)
            }
        };
        let number = self.number(query, "counters were not counted").await?;
        Ok(number.unwrap_or(0))
    }

    /// Returns the one number that a query finds.
    async fn number(
        &self,
        query: impl Fn() -> Statement,
        failed: &'static str,
    ) -> Result<Option<u64>> {
        let number = async { self.primary.fetch_one(query).await?.try_get(0) };
        number.await.map_err(store(failed))
    }

    /// Corrects the drifted counters and records them, each id once per run. Does nothing and
    /// returns `None` if the run is over for this holder. With `trusting` the run is not checked,
    /// for the tests that show why runs are needed.
    pub(crate) async fn correct(
        &self,
        family: &Registered,
        run: &Run,
        drifted: Vec<Drifted>,
        trusting: bool,
    ) -> Result<Option<Vec<Drifted>>> {
        let (mysql, family, run) = (self.clone(), family.clone(), (run.number, run.holder));
        detached(async move {
            let target = mysql.target(&family.family).await?;
            let correct = Correct {
                target: &target,
                family: &family,
                run,
                drifted: &drifted,
                trusting,
            };
            mysql
                .primary
                .transact("counters were not corrected", &correct)
                .await
        })
        .await
    }
}

fn drift(row: &MySqlRow) -> Result<Drift, sqlx::Error> {
    Ok(Drift {
        id: text(row, 0)?,
        before: row.try_get(1)?,
        rows: row.try_get(2)?,
        after: row.try_get(3)?,
        delta: row.try_get(4)?,
        note: row.try_get(5)?,
        at: time(row.try_get(6)?),
    })
}

struct Begin {
    family: u64,
    holder: u64,
    lease: Duration,
    every: Option<Duration>,
}

impl UnitOfWork for Begin {
    type Output = Begun;

    async fn run(&self, transaction: &mut Transaction) -> Result<Begun, sqlx::Error> {
        // if two processes begin a run, the second waits here and finds the first one's run
        const LOCK: &str = "SELECT number FROM counterfoil_families WHERE number = ? FOR UPDATE";
        const LAST: &str = "SELECT run, holder, CAST(finished_at IS NOT NULL AS SIGNED), \
             TIMESTAMPDIFF(MICROSECOND, started_at, CURRENT_TIMESTAMP(3)), \
             ABS(TIMESTAMPDIFF(MICROSECOND, touched_at, CURRENT_TIMESTAMP(3))), CAST(from_source AS SIGNED), last_id, \
             checked, drifted FROM counterfoil_recounts WHERE family = ? ORDER BY run DESC LIMIT 1 FOR UPDATE";
        const INSERT: &str =
            "INSERT INTO counterfoil_recounts (family, run, holder) VALUES (?, ?, ?)";
        const TAKE: &str = "UPDATE counterfoil_recounts SET holder = ?, touched_at = CURRENT_TIMESTAMP(3) \
             WHERE family = ? AND run = ?";
        let &Begin {
            family,
            holder,
            lease,
            every,
        } = self;
        transaction.fetch(sqlx::query(LOCK).bind(family)).await?;
        let rows = transaction.fetch(sqlx::query(LAST).bind(family)).await?;
        let mut number = 1;
        if let Some(row) = rows.first() {
            let (last, held): (u64, u64) = (row.try_get(0)?, row.try_get(1)?);
            let is_finished = row.try_get::<i64, _>(2)? == 1;
            let age = |index| {
                row.try_get::<i64, _>(index)
                    .map(|us| Duration::from_micros(us.max(0).unsigned_abs()))
            };
            if !is_finished {
                // a clock that stepped makes a run look old: an early takeover costs only work
                if held != 0 && age(4)? < lease {
                    return Ok(Begun::Held);
                }
                transaction
                    .execute(sqlx::query(TAKE).bind(holder).bind(family).bind(last))
                    .await?;
                let after = row.try_get::<Option<Vec<u8>>, _>(6)?;
                let at = Cursor {
                    from_source: row.try_get::<i64, _>(5)? == 1,
                    after: after.and_then(|id| String::from_utf8(id).ok()),
                };
                return Ok(Begun::Run(Run {
                    number: last,
                    holder,
                    at,
                    checked: row.try_get(7)?,
                    drifted: row.try_get(8)?,
                }));
            }
            if let Some(left) = every
                .and_then(|every| every.checked_sub(age(3).ok()?))
                .filter(|left| !left.is_zero())
            {
                return Ok(Begun::Early(left));
            }
            number = last + 1;
        }
        transaction
            .execute(sqlx::query(INSERT).bind(family).bind(number).bind(holder))
            .await?;
        Ok(Begun::Run(Run {
            number,
            holder,
            at: Cursor::default(),
            checked: 0,
            drifted: 0,
        }))
    }
}

struct Correct<'c> {
    target: &'c Target,
    family: &'c Registered,
    /// The run's number and holder.
    run: (u64, u64),
    drifted: &'c [Drifted],
    trusting: bool,
}

impl UnitOfWork for Correct<'_> {
    type Output = Option<Vec<Drifted>>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Self::Output, sqlx::Error> {
        let mut done = HashSet::new();
        if !self.trusting {
            if !self.is_held(transaction).await? {
                return Ok(None);
            }
            done = self.done(transaction).await?;
        }
        let open: Vec<_> = self
            .drifted
            .iter()
            .filter(|one| !done.contains(one.id.as_bytes()))
            .collect();
        let to_add = open.iter().enumerate();
        let to_add = to_add.filter(|(_, one)| one.only_noted.is_none() && one.delta != 0);
        let ids = to_add.map(|(index, one)| (index, one.id.as_bytes(), one.delta));
        let mut refused = Refused::new();
        let deltas = add::deltas(self.family, ids, &mut refused);
        add::add(transaction, self.target, deltas, &mut refused).await?;
        let mut noted = Vec::with_capacity(open.len());
        let mut json = JsonRows::default();
        for (index, one) in open.into_iter().enumerate() {
            let reason = refused.get(&index).map(String::as_str);
            let note = one.only_noted.or(reason);
            let delta = if note.is_some() { 0 } else { one.delta };
            json.row()
                .number(one.before)
                .number(one.rows)
                .number(one.after)
                .number(delta)
                .bytes(one.id.as_bytes())
                .bytes(rejects::short(note.unwrap_or_default()).as_bytes());
            noted.push(Drifted {
                delta,
                ..one.clone()
            });
        }
        self.note(transaction, json).await?;
        Ok(Some(noted))
    }
}

impl Correct<'_> {
    /// Returns `true` if the run is still this holder's. It then stays so until the transaction
    /// ends.
    async fn is_held(&self, transaction: &mut Transaction) -> Result<bool, sqlx::Error> {
        const HELD: &str = "SELECT run FROM counterfoil_recounts \
             WHERE family = ? AND run = ? AND holder = ? AND finished_at IS NULL FOR UPDATE";
        let query = sqlx::query(HELD)
            .bind(self.family.number)
            .bind(self.run.0)
            .bind(self.run.1);
        Ok(!transaction.fetch(query).await?.is_empty())
    }

    /// Returns the ids that the run has already recorded.
    async fn done(&self, transaction: &mut Transaction) -> Result<HashSet<Vec<u8>>, sqlx::Error> {
        static DONE: LazyLock<Text> = LazyLock::new(|| {
            Text::new(format!(
                "SELECT d.id FROM {} STRAIGHT_JOIN counterfoil_drift AS d \
                 ON d.family = ? AND d.run = ? AND d.id = UNHEX({INPUT}.id)",
                json::table([("id", "VARCHAR(510)")])
            ))
        });
        let mut json = JsonRows::default();
        for one in self.drifted {
            json.row().bytes(one.id.as_bytes());
        }
        let query = DONE.query().bind(json.finish());
        let query = query.bind(self.family.number).bind(self.run.0);
        let rows = transaction.fetch(query).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    async fn note(&self, transaction: &mut Transaction, json: JsonRows) -> Result<(), sqlx::Error> {
        static NOTE: LazyLock<Text> = LazyLock::new(|| {
            let columns = [
                ("value_before", "BIGINT"),
                ("row_count", "BIGINT"),
                ("value_after", "BIGINT"),
                ("delta", "BIGINT"),
                ("id", "VARCHAR(510)"),
                rejects::GIVEN_REASON,
            ];
            Text::new(format!(
                "INSERT INTO counterfoil_drift (family, run, id, value_before, row_count, value_after, delta, note) \
                 SELECT ?, ?, UNHEX(id), value_before, row_count, value_after, delta, {} FROM {} \
                 ON DUPLICATE KEY UPDATE counterfoil_drift.delta = counterfoil_drift.delta + {INPUT}.delta",
                rejects::REASON,
                json::table(columns)
            ))
        });
        let query = NOTE.query().bind(self.family.number).bind(self.run.0);
        transaction
            .execute(query.bind(json.finish()))
            .await
            .map(drop)
    }
}
