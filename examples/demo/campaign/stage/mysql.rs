//! The faults of MySQL.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tokio::time::sleep;

use super::super::fault::Fault;
use super::super::journal::{Ms, now};
use super::super::site;
use super::super::window::ledger;
use super::{LATE, OLDER, Stage, pause};
use crate::Result;
use crate::disturb::cut_mysql;
use crate::zipf::Random;

/// The time that a row may take from its count to MySQL, in ms.
const ON_THE_WAY: Ms = 8_000;
/// The most that a column takes which is too small.
const SMALL: i64 = 20;

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
                let (begun, stored) = (now(), ledger(&self.pool).await?);
                // others see a commit before it is in the log
                sleep(Duration::from_millis(LATE)).await;
                let backup = self.mysql.back_up();
                let most = ledger(&self.pool).await?;
                let deleted = self.deleted.clone();
                sleep(Duration::from_millis(random.below(OLDER))).await;
                self.watch.windows.borrow_mut().suspend();
                let unsaved = site::ids_in_use(begun - ON_THE_WAY, now() + LATE);
                self.unsaved.borrow_mut().push(unsaved);
                self.mysql.restore(&backup).await;
                self.deleted = deleted;
                self.watch.windows.borrow_mut().know();
                self.watch.restored(&stored, &most, begun, now());
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
                for event in ["INSERT", "UPDATE"] {
                    let create = format!(
                        "CREATE TRIGGER small_{event} BEFORE {event} ON views FOR EACH ROW \
                         IF NEW.hits > {SMALL} THEN SIGNAL SQLSTATE '22003' SET MYSQL_ERRNO = 1264, \
                         MESSAGE_TEXT = 'Out of range value for column hits'; END IF"
                    );
                    sqlx::raw_sql(AssertSqlSafe(create))
                        .execute(&self.pool)
                        .await?;
                }
                pause(random).await;
                for event in ["INSERT", "UPDATE"] {
                    let drop = format!("DROP TRIGGER small_{event}");
                    sqlx::raw_sql(AssertSqlSafe(drop))
                        .execute(&self.pool)
                        .await?;
                }
                let end = site::ids_in_use(now(), now()).end;
                if let Some(refused) = self.exempt.borrow_mut().last_mut() {
                    refused.end = end;
                }
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
