//! A network that fails on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Client;
use redis::aio::ConnectionManager;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::client;
use crate::fate::{Fate, Fates, contains};
use crate::process::Process;
use crate::redis::RedisServer;

/// A Unix socket that forwards the bytes of any number of connections to a server and back, and
/// disturbs them on demand. It runs on the runtime that created it, and stops when its handle is
/// dropped.
pub struct Proxy {
    // runs no server: it keeps the directory of the socket, and removes it however this process
    // ends
    process: Process,
    socket: PathBuf,
    network: Arc<Network>,
    listening: Mutex<Vec<JoinHandle<()>>>,
}

/// The fate of the bytes that a black hole held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They arrive late, as with TCP, even if the client has given up and closed meanwhile.
    Delivered,
    /// They never arrive: the connections are closed.
    Lost,
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

/// The state that all connections share.
struct Network {
    /// The socket of the server.
    target: Mutex<PathBuf>,
    weather: watch::Sender<Weather>,
    cut: Mutex<Option<Cut>>,
    fates: Fates,
    requests: AtomicU64,
    replies: AtomicU64,
}

/// The conditions that connections watch.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    black_hole: bool,
    delay: Duration,
    /// The number of times that all connections were closed.
    closed: u64,
}

/// A cut that has not happened yet.
#[derive(Clone, Copy, Debug)]
struct Cut {
    way: Way,
    after: usize,
}

impl Proxy {
    /// Creates a proxy in front of a server's Unix socket.
    pub fn to(server: &RedisServer) -> Self {
        Self::to_unix(server.socket())
    }

    /// Creates a proxy in front of any Unix socket.
    pub fn to_unix(target: &Path) -> Self {
        let process = Process::new();
        let socket = process.dir().join("proxy.sock");
        let listener = UnixListener::bind(&socket)
            .unwrap_or_else(|e| panic!("cannot listen on {}: {e}", socket.display()));
        let network = Arc::new(Network {
            target: Mutex::new(target.to_owned()),
            weather: watch::Sender::default(),
            cut: Mutex::default(),
            fates: Fates::default(),
            requests: AtomicU64::new(0),
            replies: AtomicU64::new(0),
        });
        let accept = async move || {
            listener
                .accept()
                .await
                .map(|(client, _)| client.into_split())
        };
        let listening = tokio::spawn(listen(accept, network.clone()));
        Proxy {
            process,
            socket,
            network,
            listening: Mutex::new(vec![listening]),
        }
    }

    /// Returns the socket that the proxy listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Leads new connections to another server. Those to the old one remain.
    pub fn redirect(&self, server: &RedisServer) {
        server.socket().clone_into(&mut self.network.target.lock());
    }

    /// Also listens on a port of 127.0.0.1, for clients without Unix sockets. Returns the port.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub async fn listen_on_port(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound listener").port();
        let accept = async move || {
            listener
                .accept()
                .await
                .map(|(client, _)| client.into_split())
        };
        let listening = tokio::spawn(listen(accept, self.network.clone()));
        self.listening.lock().push(listening);
        port
    }

    /// Returns the URL for the redis crate, `redis+unix:///...`.
    pub fn url(&self) -> String {
        client::unix_url(&self.socket)
    }

    /// Returns a client for the server behind the proxy.
    pub fn client(&self) -> Client {
        client::client(&self.url())
    }

    /// Opens a connection through the proxy that reconnects automatically, like
    /// [`RedisServer::manager`].
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    pub async fn manager(&self) -> ConnectionManager {
        match client::manager(self.client()).await {
            Ok(manager) => manager,
            Err(e) => self
                .process
                .fail(&format!("cannot connect to Redis through the proxy: {e}")),
        }
    }

    /// Cuts a connection once exactly `bytes` more bytes of requests have gone to the server: the
    /// one that sent the last of these bytes. It forwards nothing after them. With 0, the
    /// connection that sends the next byte is cut.
    pub fn cut_requests_after(&self, bytes: usize) {
        *self.network.cut.lock() = Some(Cut {
            way: Way::Requests,
            after: bytes,
        });
    }

    /// Cuts a connection once exactly `bytes` more bytes of replies have gone to the client.
    /// Meanwhile complete requests go to the server. Even with 0, the server has replied before the
    /// cut, so it has definitely executed a request.
    pub fn cut_replies_after(&self, bytes: usize) {
        *self.network.cut.lock() = Some(Cut {
            way: Way::Replies,
            after: bytes,
        });
    }

    /// Disturbs the next request that contains one of `marks`. Such calls queue up: each disturbs
    /// one request. A request is what arrives at once, possibly a pipeline.
    pub fn disturb(&self, marks: impl IntoIterator<Item = impl Into<Vec<u8>>>, fate: Fate) {
        let marks: Vec<Vec<u8>> = marks.into_iter().map(Into::into).collect();
        let is_marked = move |request: &[u8]| marks.iter().any(|mark| contains(request, mark));
        self.disturb_where(is_marked, fate);
    }

    /// Disturbs the next request with a call that is chosen, like [`disturb`](Self::disturb).
    pub fn disturb_where(&self, is_chosen: impl Fn(&[u8]) -> bool + Send + 'static, fate: Fate) {
        self.network.fates.push(is_chosen, fate);
    }

    /// Returns what tells that the next request with a call that is chosen has arrived.
    pub fn await_call(
        &self,
        is_chosen: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> oneshot::Receiver<()> {
        self.network.fates.await_call(is_chosen)
    }

    /// Takes back what has not disturbed a request yet. Returns how many requests it concerns.
    pub fn calm(&self) -> usize {
        self.network.fates.clear()
    }

    /// Cancels a cut. Returns whether there was one that had not happened yet.
    pub fn call_off(&self) -> bool {
        self.network.cut.lock().take().is_some()
    }

    /// Holds back all bytes without an error: connections stay open, and new ones get no reply
    /// until [`heal`](Self::heal).
    pub fn black_hole(&self) {
        self.network
            .weather
            .send_modify(|weather| weather.black_hole = true);
    }

    /// Ends a [`black_hole`](Self::black_hole).
    pub fn heal(&self, held: Held) {
        self.network.weather.send_modify(|weather| {
            weather.black_hole = false;
            weather.closed += u64::from(held == Held::Lost);
        });
    }

    /// Delays all further replies by `delay`, or by up to twice as much if they arrive close
    /// together.
    pub fn delay_replies(&self, delay: Duration) {
        self.network
            .weather
            .send_modify(|weather| weather.delay = delay);
    }

    /// Returns the number of bytes that clients have sent so far.
    pub fn request_bytes(&self) -> usize {
        self.network.requests.load(Ordering::Relaxed) as usize
    }

    /// Returns the number of bytes that the server has replied so far.
    pub fn reply_bytes(&self) -> usize {
        self.network.replies.load(Ordering::Relaxed) as usize
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // each listener owns its connections, which end with it
        self.listening.get_mut().iter().for_each(JoinHandle::abort);
    }
}

async fn listen<R, W>(accept: impl AsyncFn() -> io::Result<(R, W)>, network: Arc<Network>)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut weather = network.weather.subscribe();
    loop {
        let client = accept()
            .await
            .unwrap_or_else(|e| panic!("the proxy cannot accept connections: {e}"));
        // healing closes only the connections that are already forwarded: one that is accepted in a
        // black hole waits for its end, and continues
        let _ = weather.wait_for(|weather| !weather.black_hole).await;
        let network = network.clone();
        connections.spawn(async move { connect(client, &network).await });
        // removes connections that have ended
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection from start to end. If the server is down, closes it at once.
async fn connect<R, W>(client: (R, W), network: &Network) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let server = UnixStream::connect(network.target()).await?.into_split();
    forward(client, server, network).await
}

/// Sends a request on a connection of its own after a while, and ignores the reply.
async fn deliver(target: PathBuf, request: Vec<u8>, after: Duration) -> io::Result<()> {
    tokio::time::sleep(after).await;
    let mut reply = [0; 1];
    let mut server = UnixStream::connect(target).await?;
    server.write_all(&request).await?;
    server.read_exact(&mut reply).await.map(drop)
}

/// Forwards both ways until one side closes or is cut, then closes both.
async fn forward(
    (from_client, to_client): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (from_server, to_server): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    network: &Network,
) -> io::Result<()> {
    let mut weather = network.weather.subscribe();
    let closed = weather.borrow_and_update().closed;
    let ending = Mutex::new(None);
    tokio::select! {
        _ = weather.wait_for(|weather| weather.closed > closed) => Ok(()),
        ended = network.pump(Way::Requests, from_client, to_server, &ending) => ended,
        ended = network.pump(Way::Replies, from_server, to_client, &ending) => ended,
    }
}

impl Network {
    fn target(&self) -> PathBuf {
        self.target.lock().clone()
    }

    async fn pump(
        &self,
        way: Way,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        ending: &Mutex<Option<usize>>,
    ) -> io::Result<()> {
        let mut weather = self.weather.subscribe();
        let closed = weather.borrow().closed;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            self.seen(way).fetch_add(length as u64, Ordering::Relaxed);
            let delay = weather.borrow().delay;
            if way == Way::Replies && !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // a black hole also holds back the end of the other side
            clear(&mut weather, closed).await?;
            if length == 0 {
                return Ok(());
            }
            let (passed, is_cut) = match self.disturb(way, &buffer[..length], ending) {
                Some(passed) => (passed.min(length), true),
                None => self.pass(way, length),
            };
            to.write_all(&buffer[..passed]).await?;
            if is_cut {
                return Ok(());
            }
        }
    }

    /// Applies the fate of a request, or ends a connection whose reply is lost. Returns how many
    /// bytes pass before the connection ends, `None` if it does not.
    fn disturb(&self, way: Way, bytes: &[u8], ending: &Mutex<Option<usize>>) -> Option<usize> {
        let mut ending = ending.lock();
        if way == Way::Replies {
            return *ending;
        }
        let send = |calls, after| tokio::spawn(deliver(self.target(), calls, after));
        let (fate, chosen) = self.fates.take(bytes)?;
        match fate {
            Fate::RequestLost { passed } => return Some(passed),
            Fate::ReplyLost { passed } => *ending = Some(passed),
            Fate::Twice { after } => drop(send(chosen, after)),
            Fate::Late { after } => {
                drop(send(bytes.to_vec(), after));
                return Some(0);
            }
        }
        None
    }

    /// Returns how many of `length` bytes may pass, and whether the connection is cut after them.
    fn pass(&self, way: Way, length: usize) -> (usize, bool) {
        let mut next = self.cut.lock();
        match &mut *next {
            Some(cut) if cut.way == way && cut.after <= length => {
                let passed = cut.after;
                *next = None;
                (passed, true)
            }
            Some(cut) if cut.way == way => {
                cut.after -= length;
                (length, false)
            }
            _ => (length, false),
        }
    }

    fn seen(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Requests => &self.requests,
            Way::Replies => &self.replies,
        }
    }
}

/// Waits for the end of a black hole. Returns an error if the bytes in it are lost.
async fn clear(weather: &mut watch::Receiver<Weather>, closed: u64) -> io::Result<()> {
    let is_over = |weather: &Weather| !weather.black_hole || weather.closed > closed;
    match weather.wait_for(is_over).await {
        Ok(weather) if weather.closed == closed => Ok(()),
        _ => Err(io::ErrorKind::ConnectionReset.into()),
    }
}
