//! A page that shows how busy its site is, while it happens: hits over time as a chart, and who is here now.
//!
//! `cargo run --example live_page`
//!
//! It counts on private servers unless `--redis` and `--mysql` (or `REDIS_URL` and `DATABASE_URL`) name others; then any
//! number of these servers may run side by side, and each shows the hits of all.

mod servers;
mod site;

use clap::Parser;
use site::Site;

/// Serves a page that shows its own hits as they come.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    urls: servers::Urls,
    /// Where to listen
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
    // Not axum's graceful shutdown, which waits for all responses to end: those of the events never do.
    tokio::select! {
        served = axum::serve(listener, site::router(site)) => served?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}
