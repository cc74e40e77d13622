//! The faults of MySQL.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, MySqlPool};
use testkit::{Backup, MysqlServer};
use tokio::time::sleep;

use super::super::fault::Fault;
use super::super::journal::{Ms, now};
use super::super::site::{self, SAVES};
use super::super::window::{Ledger, ledger};
use super::{LATE, OLDER, PAUSED, Stage, pause};
use crate::Result;
use crate::disturb::cut_mysql;
use crate::zipf::Random;

/// The time that a row may take from its count to MySQL, in ms.
const ON_THE_WAY: Ms = 8_000;
/// The most that a column takes which is too small.
const SMALL: i64 = 20;
/// The most saves of one counter that a column takes which is too small.
const FEW: i64 = 2;

/// An older state of MySQL.
#[derive(Clone)]
pub(super) struct State {
    backup: Rc<Backup>,
    /// A time before the backup.
    begun: Ms,
    /// The least and the most that its ledger has.
    ledgers: Rc<(Ledger, Ledger)>,
    /// The hits of the rows that were deleted.
    deleted: BTreeMap<u64, i64>,
}

impl State {
    pub async fn back_up(
        mysql: &MysqlServer,
        pool: &MySqlPool,
        deleted: &BTreeMap<u64, i64>,
    ) -> Result<Self> {
        let (begun, least) = (now(), ledger(pool).await?);
        // others see a commit before it is in the log
        sleep(Duration::from_millis(LATE)).await;
        let backup = Rc::new(mysql.back_up());
        Ok(State {
            backup,
            begun,
            ledgers: Rc::new((least, ledger(pool).await?)),
            deleted: deleted.clone(),
        })
    }
}

impl Stage<'_> {
    pub(super) async fn strike_mysql(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::MysqlKilled => {
                self.mysql.kill();
                sleep(Duration::from_millis(random.below(LATE))).await;
                self.mysql.start_again().await;
            }
            Fault::MysqlPaused => {
                self.mysql.pause();
                pause(random).await;
                self.mysql.resume();
            }
            Fault::MysqlRestored => {
                let older = State::back_up(self.mysql, &self.pool, &self.deleted).await?;
                sleep(Duration::from_millis(random.below(OLDER))).await;
                self.restore_mysql(&older).await;
            }
            Fault::MysqlRestoredToItsStart => {
                let start = self.start.clone();
                self.restore_mysql(&start).await;
                site::register(&self.pool, SAVES, self.persistence).await?;
                // reconcilers register the families of their batches, and the supervisor has none
                sleep(Duration::from_millis(PAUSED)).await;
                self.means = self.way.open(&self.place, self.persistence).await?;
            }
            Fault::MysqlDiskFull => {
                if let Some(disk) = self.mysql.disk() {
                    disk.fill();
                    pause(random).await;
                    disk.free();
                }
            }
            Fault::TableLocked => {
                let mut lock = self.pool.acquire().await?.detach();
                sqlx::raw_sql("LOCK TABLES views WRITE")
                    .execute(&mut lock)
                    .await?;
                pause(random).await;
            }
            Fault::ColumnTooSmall => {
                let first = site::ids_in_use(now() - ON_THE_WAY, now()).start;
                self.exempt.borrow_mut().push(first..u64::MAX);
                self.refuse("views", &format!("NEW.hits > {SMALL}")).await?;
                pause(random).await;
                self.accept().await?;
                let end = site::ids_in_use(now(), now()).end;
                if let Some(refused) = self.exempt.borrow_mut().last_mut() {
                    refused.end = end;
                }
                self.retry_rejects().await?;
            }
            Fault::SavesRefused => {
                let number = "SELECT number FROM counterfoil_families WHERE name = 'saves'";
                let number: u32 = sqlx::query_scalar(number).fetch_one(&self.pool).await?;
                let is_save = format!("NEW.family = {number} AND NEW.value > {FEW}");
                self.refuse("counterfoil_values", &is_save).await?;
                let run = site::wait_for_correction(&self.pool).await?;
                self.accept().await?;
                site::wait_for_end(&self.pool, run).await?;
                self.retry_rejects().await?;
            }
            // a reconciler may win a deadlock
            Fault::RowDeleted => while self.delete_row().await.is_err() {},
            _ => {
                cut_mysql(&self.pool).await?;
            }
        }
        Ok(())
    }

    /// Has a table refuse rows.
    async fn refuse(&self, table: &str, which: &str) -> Result<()> {
        for event in ["INSERT", "UPDATE"] {
            let create = format!(
                "CREATE TRIGGER small_{event} BEFORE {event} ON {table} FOR EACH ROW \
                 IF {which} THEN SIGNAL SQLSTATE '22003' SET MYSQL_ERRNO = 1264, \
                 MESSAGE_TEXT = 'Out of range value for column'; END IF"
            );
            sqlx::raw_sql(AssertSqlSafe(create))
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }

    /// Has the table take them again.
    async fn accept(&self) -> Result<()> {
        for event in ["INSERT", "UPDATE"] {
            let drop = format!("DROP TRIGGER small_{event}");
            sqlx::raw_sql(AssertSqlSafe(drop))
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }

    /// Returns MySQL to an older state.
    async fn restore_mysql(&mut self, older: &State) {
        self.watch.windows.borrow_mut().suspend();
        let unsaved = site::ids_in_use(older.begun - ON_THE_WAY, now() + LATE);
        self.unsaved.borrow_mut().push(unsaved);
        self.mysql.restore(&older.backup).await;
        self.deleted.clone_from(&older.deleted);
        self.watch.windows.borrow_mut().know();
        let (least, most) = &*older.ledgers;
        self.watch.restored(least, most, older.begun, now());
    }

    /// Deletes the newest row of views, and notes what it had.
    async fn delete_row(&mut self) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        let select = "SELECT id, hits FROM views ORDER BY id DESC LIMIT 1 FOR UPDATE";
        let row: Option<(u64, i64)> = sqlx::query_as(select)
            .fetch_optional(&mut *transaction)
            .await?;
        let Some((id, hits)) = row else {
            return Ok(());
        };
        // before it is deleted, so that no read is compared that may lack it
        self.exempt.borrow_mut().push(id..id + 1);
        let delete = sqlx::query("DELETE FROM views WHERE id = ?").bind(id);
        delete.execute(&mut *transaction).await?;
        transaction.commit().await?;
        *self.deleted.entry(id).or_default() += hits;
        Ok(())
    }
}
