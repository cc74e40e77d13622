//! TCP ports, for servers that need more than a Unix socket.

use std::hash::{BuildHasher, RandomState};
use std::net::{TcpListener, UdpSocket};

use parking_lot::Mutex;

/// The range of ports. Both they and the cluster bus, 10,000 above, lie below the ports that
/// systems assign to clients. A server that was down for a while must find its port free again.
const PORTS: std::ops::Range<u16> = 12_000..22_000;

/// The distance from the port of a cluster node to its bus.
const BUS: u16 = 10_000;

/// Returns a port on which no process currently listens, nor on the one 10,000 above. It is not
/// given out again before this process ends.
pub fn free() -> u16 {
    // UDP sockets of the same numbers reserve the ports: servers do not use them, and they end with
    // the process
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
    GIVEN.lock().push(claim);
    port
}
