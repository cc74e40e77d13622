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

/// The maximum number of connections. Further ones wait until one ends.
pub const MOST: usize = 512;
/// The time limit for the head of each request on a connection.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The time limit for a client that reads nothing of a reply.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// The maximum size of a request's head, in bytes.
pub const HEAD: usize = 32 * 1024;
/// The maximum number of headers in a request.
const HEADERS: usize = 64;
/// The time limit for open requests when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(3);
/// The pause after a connection could not be accepted, mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

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
            stream = accept(&listener), if connections.len() < MOST => {
                connections.spawn(converse(stream, router.clone(), stopping.subscribe()));
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(FAREWELL, all).await.is_err() {
        tracing::debug!("connections were cut that did not end");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => tracing::warn!(%error, "no connection was taken"),
        }
        sleep(PAUSE).await;
    }
}

/// Returns when the daemon ends.
pub async fn stop_of(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Serves the requests of a connection, one after the other.
async fn converse(stream: TcpStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(TAKEN_WITHIN));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD)
        .max_headers(HEADERS);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop_of(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
