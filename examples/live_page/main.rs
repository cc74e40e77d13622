//! A page that shows live how busy its site is: a chart of hits over time, and the current
//! visitors.
//!
//! `cargo run --example live_page`
//!
//! It counts on private servers by default. With `--redis` and `--mysql` (or `REDIS_URL` and
//! `DATABASE_URL`), any number of these processes may run side by side, and each shows the hits of
//! all.

mod servers;
mod site;

use clap::Parser;
use site::Site;

/// Serves a page that shows its own hits live.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    urls: servers::Urls,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let servers = args.urls.servers().await;
    let site = Site::open(&servers.redis, &servers.mysql).await?;
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    println!("http://{}/", listener.local_addr()?);
    if servers.are_private() {
        println!("counts on private servers, which end with this");
    }
    // Not axum's graceful shutdown, which waits for all responses to end: the event streams never
    // do.
    tokio::select! {
        served = axum::serve(listener, site::router(site)) => served?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}
