//! A recounter process: recounts repeatedly, in one of the ways, until it is killed.

use std::future::pending;
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::sleep;

use super::saves;
use super::way::{self, Naive, WITHIN, Way};
use crate::Result;
use crate::child::{self, Report};
use crate::families::{Place, patiently};

const EVERY: RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_millis(400);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[arg(long, value_enum)]
    way: Way,
    #[arg(long)]
    users: u32,
}

pub async fn run(Args { place, way, users }: Args) -> Result<()> {
    let _no_orders = child::orders();
    let (pair, saves) = patiently(async || saves::open(&place).await).await?;
    if way == Way::Proven {
        let _recounter = way::proven(&pair, &saves).every(EVERY).start()?;
        child::report(&Report::Ready)?;
        return pending().await;
    }
    let naive = Naive::new(way, &place, &saves, users).await?;
    child::report(&Report::Ready)?;
    loop {
        // an error means that a connection was cut; the next turn recounts again
        let _ = naive.recount().await;
        sleep(WITHIN).await;
    }
}
