//! The writer processes, seen from the supervisor.

use futures_util::future::try_join_all;
use tokio::sync::watch;

use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::families::Place;
use crate::log::Log;
use crate::writer::Tally;

pub const WRITERS: usize = 4;

/// Writer processes, each with its share of the log.
pub struct Writers(Vec<(Worker, Reports)>);

impl Writers {
    pub async fn start(place: &Place, log: &Log) -> Result<Self> {
        let mut writers = Vec::new();
        for share in 0..WRITERS {
            writers.push(start_one(place, log, share).await?);
        }
        Ok(Writers(writers))
    }

    /// Lets all of them count up to this line of the log, adding to the tally as they do. Answers how many seconds the
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

async fn start_one(place: &Place, log: &Log, share: usize) -> Result<(Worker, Reports)> {
    let path = log.path.to_str().ok_or("the log's path is not UTF-8")?;
    let (bytes, share, of) = (log.bytes.to_string(), share.to_string(), WRITERS.to_string());
    let log = ["--path", path, "--bytes", &bytes, "--share", &share, "--of", &of];
    let place = ["--redis", &place.redis, "--mysql", &place.mysql];
    let args: Vec<_> = ["writer-process"].into_iter().chain(place).chain(log).map(str::to_owned).collect();
    Worker::start(&args).await
}
