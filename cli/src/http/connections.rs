//! Connections: their number, their time limits, and their end.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::daemon::state::is_set;

/// The maximum number of connections. Further ones wait until one ends.
const MAX_CONNECTIONS: usize = 512;
/// The time limit for the head of each request on a connection.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a client that reads nothing of a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a request's head, in bytes.
const MAX_HEAD: usize = 32 * 1024;
/// The maximum number of headers in a request.
const MAX_HEADERS: usize = 64;
/// The time limit for open requests when the daemon ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause after a connection was not accepted, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()>,
    stopping: watch::Sender<bool>,
) {
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            stream = accept(&listener), if connections.len() < MAX_CONNECTIONS => {
                connections.spawn(serve_connection(stream, router.clone(), stopping.subscribe()));
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        tracing::debug!("closed connections that did not end in time");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => tracing::warn!(error = %format_args!("{error:#}"), "accept failed"),
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Serves the requests of a connection, one after the other.
async fn serve_connection(stream: TcpStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = is_set(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %format_args!("{error:#}"), "connection failed");
    }
}
