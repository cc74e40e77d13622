//! Connections: their number, their time limits, and their end.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;

/// The maximum number of connections that are served completely.
const MAX_CONNECTIONS: usize = 512;
/// The number of further connections, which may only check health and read metrics. A new one replaces
/// the oldest, so that slow clients cannot keep a check waiting.
const RESERVE: usize = 64;
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
/// The time without such a failure after which the next failure is logged again.
const ACCEPT_RECOVERY: Duration = Duration::from_mins(1);

/// The address of a request's client, or of a proxy.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Serves until `stop`. Connections beyond the maximum are served by `reserved` alone.
pub async fn serve(
    listener: TcpListener,
    [router, reserved]: [Router; 2],
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let (mut connections, mut reserve) = (JoinSet::new(), Reserve::default());
    let mut stop = pin!(stop);
    let mut accept_failed = None;
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            Some(_) = reserve.tasks.join_next() => {}
            client = accept(&listener, &mut accept_failed) => {
                let watcher = graceful.watcher();
                if connections.len() < MAX_CONNECTIONS {
                    connections.spawn(serve_connection(client, router.clone(), true, watcher));
                } else {
                    // without keep-alive, so that the client connects again for its next request.
                    // That connection may be one that is served completely
                    let reserved = reserved.clone();
                    reserve.spawn(serve_connection(client, reserved, false, watcher));
                }
            }
        }
    }
    drop(listener);
    let _ = timeout(SHUTDOWN_TIMEOUT, graceful.shutdown()).await;
}

/// The connections beyond the maximum.
#[derive(Default)]
struct Reserve {
    tasks: JoinSet<()>,
    /// The tasks, the oldest first.
    by_age: VecDeque<AbortHandle>,
}

impl Reserve {
    /// Serves a further connection, in place of the oldest one if there are too many.
    fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.by_age.retain(|older| !older.is_finished());
        if self.by_age.len() == RESERVE
            && let Some(oldest) = self.by_age.pop_front()
        {
            oldest.abort();
        }
        self.by_age.push_back(self.tasks.spawn(connection));
    }
}

/// Accepts a connection. Logs a failure unless the last one, at `failed`, was a moment before:
/// while file descriptors are short, failures and accepted connections alternate.
async fn accept(listener: &TcpListener, failed: &mut Option<Instant>) -> (TcpStream, Peer) {
    loop {
        let error = match listener.accept().await {
            Ok((stream, address)) => return (stream, Peer(address.ip())),
            Err(error) => error,
        };
        let before = failed.replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > ACCEPT_RECOVERY) {
            tracing::warn!(error = %format_args!("{error:#}"), "accept failed");
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Serves the requests of a connection, one after the other.
async fn serve_connection(
    (stream, peer): (TcpStream, Peer),
    router: Router,
    keep_alive: bool,
    watcher: Watcher,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .keep_alive(keep_alive)
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request| {
        request.extensions_mut().insert(peer);
        routes.call(request)
    });
    let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error = %format_args!("{error:#}"), "connection failed");
    }
}
