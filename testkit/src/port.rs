//! TCP ports, for what cannot do with a Unix socket.

use std::hash::{BuildHasher, RandomState};
use std::net::{TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

/// Below what systems hand out to clients: a server that is down for a while must find its port free again. And so that
/// the cluster bus, 10,000 above, is there as well.
const PORTS: std::ops::Range<u16> = 12_000..22_000;

/// How much above its port a cluster's node has its bus.
const BUS: u16 = 10_000;

/// A port that nobody listens on at present, nor 10,000 above it, and that no process is given before this one ends.
pub(crate) fn free() -> u16 {
    // UDP sockets of the same numbers: servers have no use for them, and they go with the process
    static GIVEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let random = RandomState::new().hash_one(std::process::id());
    let start = (random % PORTS.len() as u64) as usize;
    let mut ports = PORTS.cycle().skip(start).take(PORTS.len());
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let claimed = ports.find_map(|port| {
        let claim = UdpSocket::bind(("127.0.0.1", port)).ok()?;
        (is_free(port) && is_free(port + BUS)).then_some((port, claim))
    });
    let (port, claim) = claimed.unwrap_or_else(|| panic!("no free port in {PORTS:?}"));
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
    port
}
