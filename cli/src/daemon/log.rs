//! The daemon's log: lines of text or of JSON, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{SubscriberBuilder, format::DefaultFields};

use crate::config::LogFormat;

/// The default filter, which `RUST_LOG` overrides. The daemon logs each state once, so this hides
/// the library's messages about every attempt.
const FILTER: &str = "info,counterfoil::reconciler=error,counterfoil::recount=error,counterfoil::writer=error,sqlx=error";

pub fn begin(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(FILTER));
    // a closed pipe must not end the daemon
    let log: SubscriberBuilder<DefaultFields> =
        tracing_subscriber::fmt().log_internal_errors(false);
    let log = log
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(filter);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
