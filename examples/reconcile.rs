//! The reconciler alone, for a family that programs in other languages count through the Lua bundle:
//!
//! `cargo run --example reconcile -- --namespace shop --family product_views --partitions 8`

use std::env;

use clap::Parser;
use counterfoil::{Counterfoil, Family};
use tokio::signal::{ctrl_c, unix};

/// Brings a family's pending hits from Redis to MySQL until it is told to stop by Ctrl-C or SIGTERM.
#[derive(Parser)]
struct Args {
    /// Where the hits are counted; the variable REDIS_URL says it as well
    #[arg(long, value_name = "URL", default_value_t = variable("REDIS_URL", "redis://localhost"))]
    redis: String,
    /// Where the values are kept; the variable DATABASE_URL says it as well
    #[arg(long, value_name = "URL", default_value_t = variable("DATABASE_URL", "mysql://root@localhost/test"))]
    mysql: String,
    #[arg(long, default_value = "example")]
    namespace: String,
    #[arg(long, default_value = "page_views")]
    family: String,
    /// Into how many partitions the writers cut the family
    #[arg(long, default_value_t = 8)]
    partitions: u32,
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or(default.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let pair = Counterfoil::connect(&args.redis, &args.mysql).await?;
    pair.store().create_tables().await?;
    let family = Family::buffered(args.namespace, args.family).partitions(args.partitions).build()?;
    let counters = pair.open(family).await?;
    for finding in pair.check().await {
        eprintln!("{finding}");
    }
    let reconciler = pair.reconciler().start().await?;
    println!("reconciling {}", counters.family());

    let mut terminated = unix::signal(unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    Ok(reconciler.shutdown().await?)
}
