//! A cluster connection of the redis crate that has lost all nodes. Real nodes cannot be made to
//! reply at the moments that it takes.

use std::net;

use redis::cluster::ClusterClient;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::connect;

use crate::support::*;

/// Two nodes, each with half of the slots, until all slots are at a port where nothing listens.
struct Nodes {
    ports: [u16; 2],
    are_gone: AtomicBool,
}

impl Nodes {
    /// Serves a connection. A GET of `late` has its reply after the refresh of the slots that the
    /// reply to another one begins.
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(words) = command(&mut stream).await {
            if words.last().is_some_and(|last| last == "late") {
                pause(300).await;
            }
            let reply = self.reply(&words[0]);
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    }

    fn reply(&self, command: &str) -> String {
        let are_gone = self.are_gone.load(Ordering::Relaxed);
        let [a, b] = if are_gone { [1, 1] } else { self.ports };
        let slots = |from, to, port| {
            format!("*3\r\n:{from}\r\n:{to}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
        };
        match command {
            "CLUSTER" => format!("*2\r\n{}{}", slots(0, 8191, a), slots(8192, 16383, b)),
            "GET" if are_gone => "-MOVED 1 127.0.0.1:1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    }
}

/// Reads the words of a command.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = vec![];
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8(word).ok()?.trim_end().to_owned());
    }
    Some(words)
}

/// Reads the number of words, or the length of one.
async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

/// Without nodes, the connection of the redis crate refreshes its slots for ever.
#[tokio::test]
async fn a_connection_that_has_lost_all_nodes_is_replaced() {
    let listeners = [0, 1].map(|_| net::TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners
        .each_ref()
        .map(|it| it.local_addr().unwrap().port());
    let are_gone = AtomicBool::new(false);
    let nodes = Arc::new(Nodes { ports, are_gone });
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let nodes = nodes.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(nodes.clone().serve(stream));
            }
        });
    }
    let urls = ports.map(|port| format!("redis://127.0.0.1:{port}"));
    let builder = counterfoil::cluster_settings(ClusterClient::builder(urls));
    let redis = connect(builder).await;
    // one key is in each node
    let get = async |key: &str| {
        let mut get = redis::cmd("GET");
        get.arg(key).query_async::<String>(&mut redis.clone()).await
    };
    assert_eq!(get("prompt").await.unwrap(), "OK");
    nodes.are_gone.store(true, Ordering::Relaxed);
    let (late, prompt) = tokio::join!(get("late"), get("prompt"));
    assert!(late.is_err() && prompt.is_err());
    nodes.are_gone.store(false, Ordering::Relaxed);
    eventually("a reply", async || get("prompt").await.is_ok()).await;
}
