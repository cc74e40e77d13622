//! The daemon.

use crate::config::Config;
use crate::exit::{Exit, Failure};

pub async fn run(config: Config) -> Result<Exit, Failure> {
    let _ = config;
    Ok(Exit::Ok)
}
