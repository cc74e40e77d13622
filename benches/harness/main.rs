//! The benchmarks: the crate and its alternatives, measured side by side in one run:
//! `./dev bench [--quick] [--json FILE] [NAME...]`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod activity;
mod cached;
mod clients;
mod daemon;
mod flush;
mod growth;
mod hits;
mod idle;
mod in_redis;
mod measuring;
mod reads;
mod recount;
mod scale;
mod scripts;
mod series;
mod set_back;
mod through_mysql;
mod values;

use std::path::PathBuf;

use clap::Parser;
use measuring::Bench;

#[derive(Parser)]
#[command(name = "./dev bench")]
struct Args {
    /// About a fifth of the work: enough to see whether something broke, not enough to quote.
    #[arg(long)]
    quick: bool,
    /// The file to write the figures to: one flat object, name: number.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The figures to measure, by name or part of a name. Defaults to all.
    names: Vec<String>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs with two workers, even on more cores, so that figures of different machines are comparable.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args = Args::parse();
    println!("{}", testkit::versions());
    let mut bench = Bench::new(args.quick, args.names);
    // first, while the process holds no freed memory that it could reuse
    idle::measure(&mut bench).await;
    hits::measure(&mut bench).await;
    in_redis::measure(&mut bench).await;
    through_mysql::measure(&mut bench).await;
    flush::measure(&mut bench).await;
    reads::measure(&mut bench).await;
    recount::measure(&mut bench).await;
    growth::measure(&mut bench).await;
    cached::measure(&mut bench).await;
    series::measure(&mut bench).await;
    activity::measure(&mut bench).await;
    set_back::measure(&mut bench).await;
    daemon::measure(&mut bench).await;
    values::measure(&mut bench).await;
    clients::measure(&mut bench).await;
    scale::measure(&mut bench).await;
    bench.found().print();
    if args.quick {
        println!(
            "quick: shorter, with fewer rounds, and at most 1 M ids pending where a figure says 5 M"
        );
    }
    if let Some(path) = args.json {
        bench.found().write_json(&path);
    }
}
