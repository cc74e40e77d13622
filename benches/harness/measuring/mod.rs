//! The measuring tools: servers, sides that hit them in turn, and the resulting figures.

mod bench;
mod compare;
mod figures;
mod load;
pub mod process;
mod servers;
mod stage;

pub use bench::Bench;
pub use compare::{Comparison, Rounds, alternate, latencies, latency, median, percentile};
pub use figures::Target::{AtLeast, AtMost};
pub use figures::{Curve, Figure, draw};
pub use load::{Acked, Ids, Load, Plain, Side};
pub use servers::{Counters, Pair, Scripts, connect, info, number_after, redis_cpu};
pub use stage::{Pending, Stage};
