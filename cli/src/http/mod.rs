//! What the daemon shows over HTTP.

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::daemon::live::Live;

pub async fn serve(
    listener: TcpListener,
    live: Live,
    token: Option<String>,
    prometheus: PrometheusHandle,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let _ = (listener, live, token, prometheus);
    stop.await;
    Ok(())
}
