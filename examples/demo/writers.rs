//! The supervisor's view of the writer processes.

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
    /// Starts this program in the given role, with arguments that describe what to count.
    pub async fn start(role: &str, place: &Place, what: &[String]) -> Result<Self> {
        let mut writers = Vec::new();
        for share in 0..WRITERS {
            let (share, of) = (share.to_string(), WRITERS.to_string());
            let own = [
                role,
                "--redis",
                &place.redis,
                "--mysql",
                &place.mysql,
                "--share",
                &share,
                "--of",
                &of,
            ];
            let args: Vec<_> = own
                .map(str::to_owned)
                .into_iter()
                .chain(what.iter().cloned())
                .collect();
            writers.push(Worker::start(&args).await?);
        }
        Ok(Writers(writers))
    }

    /// Lets all writers count up to line `end` and adds their reports to the tally. Returns the
    /// seconds that the slowest writer took.
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
