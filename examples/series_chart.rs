//! Prints a series as a chart: the number of events in each slice of time.
//!
//! `cargo run --example series_chart -- / --precision 5s`
//!
//! It reads from the servers in `--redis` and `--mysql` (or `REDIS_URL` and `DATABASE_URL`), for
//! instance the hits of the live page. Without them it starts private servers and first counts some
//! sample hits.

#[path = "live_page/servers.rs"]
mod servers;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use counterfoil::{Counterfoil, Family, Precision, Series, Slice};
use indicatif::ProgressBar;
use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Widget};
use tokio::time::interval;

/// Prints a series as a chart.
#[derive(Parser)]
struct Args {
    /// The name of the series within its family
    #[arg(default_value = "/")]
    name: String,
    /// The length of a slice of time
    #[arg(long, default_value = "1s", value_parser = precision)]
    precision: Precision,
    #[arg(long, default_value = "example")]
    namespace: String,
    #[arg(long, default_value = "hits")]
    family: String,
    /// The width of the chart in columns
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(40..=500))]
    width: u16,
    /// The height of the chart in lines
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(10..=500))]
    height: u16,
    #[command(flatten)]
    urls: servers::Urls,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let servers = args.urls.servers().await;
    let pair = Counterfoil::connect(&servers.redis, &servers.mysql).await?;
    if servers.are_private() {
        pair.mysql()?.create_tables().await?;
    }
    let series = pair
        .open(Family::series(args.namespace, args.family))
        .await?;
    if servers.are_private() {
        count_something(&series, &args.name).await?;
    }
    let slices = series.get(&args.name, args.precision).await?;
    let title = format!("{} per {}", args.name, args.precision);
    print!(
        "{}",
        text(&drawn(
            &slices,
            title,
            Rect::new(0, 0, args.width, args.height)
        ))
    );
    Ok(())
}

fn precision(name: &str) -> Result<Precision, String> {
    let names = Precision::DEFAULT.map(|precision| precision.to_string());
    let found = names
        .iter()
        .position(|one| one == name)
        .map(|at| Precision::DEFAULT[at]);
    found.ok_or_else(|| format!("is none of {}", names.join(", ")))
}

/// Counts hits at a varying rate for ten seconds.
async fn count_something(series: &Series, name: &str) -> counterfoil::Result<()> {
    const STEPS: u64 = 100;
    let mut time = interval(Duration::from_millis(100));
    for step in ProgressBar::new(STEPS)
        .with_message("counting")
        .wrap_iter(0..STEPS)
    {
        time.tick().await;
        let _ = series.add(name, 1 + step % 30).await?;
    }
    Ok(())
}

fn drawn(slices: &[Slice], title: String, area: Rect) -> Buffer {
    let points: Vec<_> = slices
        .iter()
        .map(|slice| (seconds(slice.start), slice.count as f64))
        .collect();
    let most = slices
        .iter()
        .map(|slice| slice.count)
        .max()
        .unwrap_or_default();
    // An even maximum, so that the label in the middle is a whole number.
    let top = (most + most % 2).max(2);
    let start = |slice: Option<&Slice>| slice.map_or(UNIX_EPOCH, |slice| slice.start);
    let (first, last) = (start(slices.first()), start(slices.last()));

    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .data(&points);
    let times = Axis::default()
        .bounds([first, last].map(seconds))
        .labels([first, last].map(time))
        .labels_alignment(Alignment::Right);
    let counts = Axis::default()
        .bounds([0.0, top as f64])
        .labels([0, top / 2, top].map(|count| count.to_string()));
    let chart = Chart::new(vec![line])
        .block(Block::bordered().title(title))
        .x_axis(times)
        .y_axis(counts);
    let mut buffer = Buffer::empty(area);
    chart.render(area, &mut buffer);
    buffer
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

fn time(start: SystemTime) -> String {
    Timestamp::try_from(start)
        .map(|time| time.to_string())
        .unwrap_or_default()
}

/// Returns the text of the buffer, line by line.
fn text(buffer: &Buffer) -> String {
    let lines = buffer.content().chunks(usize::from(buffer.area.width));
    lines
        .flat_map(|cells| cells.iter().map(|cell| cell.symbol()).chain(["\n"]))
        .collect()
}
