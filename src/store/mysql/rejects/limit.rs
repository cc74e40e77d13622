//! The limit of the number of rejects.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::mysql::session::Session;
use crate::store::mysql::statement::Statement;

/// The limit of the number of rejects. Each process counts them now and then, and meanwhile the ones
/// that it inserts, so several processes may exceed it a little.
#[derive(Debug)]
pub struct Limit {
    pub most: u64,
    /// The number of further rejects, and the time of the count.
    room: Mutex<Option<(u64, Instant)>>,
}

impl Limit {
    /// The default of [`MysqlStore::max_rejects`](crate::MysqlStore::max_rejects).
    const MOST: u64 = 1_000_000;
    /// The time between counts.
    const COUNTED: Duration = Duration::from_mins(1);

    pub fn new(most: u64) -> Self {
        let room = Mutex::default();
        Limit { most, room }
    }

    /// Returns the number of further rejects.
    pub async fn room(&self, transaction: &mut Session) -> Result<u64, sqlx::Error> {
        let known = *self.room.lock();
        if let Some((room, _)) = known.filter(|(_, counted)| counted.elapsed() < Limit::COUNTED) {
            return Ok(room);
        }
        let counted = Instant::now();
        let rows = transaction.fetch(count_up_to(self.most)).await?;
        let rejects = rows.first().map_or(0, |&(rejects,)| rejects);
        let room = self.most.saturating_sub(rejects);
        *self.room.lock() = Some((room, counted));
        Ok(room)
    }

    pub fn use_up(&self, inserted: u64) {
        if let Some((room, _)) = &mut *self.room.lock() {
            *room = room.saturating_sub(inserted);
        }
    }
}

impl Default for Limit {
    fn default() -> Self {
        Limit::new(Limit::MOST)
    }
}

/// Returns the statement that counts rejects, up to this number.
pub fn count_up_to(most: u64) -> Statement {
    const COUNT: &str = "SELECT CAST(COUNT(*) AS UNSIGNED) FROM \
         (SELECT 1 FROM counterfoil_rejects FORCE INDEX (newest) LIMIT ?) AS r";
    Statement::new(COUNT).bind(most)
}
