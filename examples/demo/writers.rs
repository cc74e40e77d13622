//! The writer processes, seen from the supervisor.

use futures_util::future::try_join_all;
use tokio::sync::watch;

use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::families::Place;
use crate::work::Tally;

pub const WRITERS: usize = 4;

/// Writer processes, each with its share of the lines.
pub struct Writers(Vec<(Worker, Reports)>);

impl Writers {
    /// This program in that role, with these arguments that say what to count.
    pub async fn start(role: &str, place: &Place, what: &[String]) -> Result<Self> {
        let mut writers = Vec::new();
        for share in 0..WRITERS {
            let (share, of) = (share.to_string(), WRITERS.to_string());
            let own = [role, "--redis", &place.redis, "--mysql", &place.mysql, "--share", &share, "--of", &of];
            let args: Vec<_> = own.map(str::to_owned).into_iter().chain(what.iter().cloned()).collect();
            writers.push(Worker::start(&args).await?);
        }
        Ok(Writers(writers))
    }

    /// Lets all of them count up to this line, adding to the tally as they do. Returns how many seconds the
    /// slowest of them needed.
    pub async fn round(&mut self, end: u64, tally: &watch::Sender<Tally>) -> Result<f64> {
        let rounds = self.0.iter_mut().map(|(worker, reports)| async move {
            worker.order(&end.to_string()).await?;
            loop {
                match reports.next().await? {
                    Some(Report::Counted(more)) => tally.send_modify(|tally| tally.add(more)),
                    Some(Report::Finished { seconds }) => return Ok::<_, crate::BoxError>(seconds),
                    Some(_) => {}
                    None => return Err("a writer ended early".into()),
                }
            }
        });
        Ok(try_join_all(rounds).await?.into_iter().fold(0.0, f64::max))
    }
}
