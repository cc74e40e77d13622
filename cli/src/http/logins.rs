//! Failed logins, counted by client, so that no client can try many tokens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time in which failures are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The number of failures after which a client must wait for the end of the window.
const LIMIT: u32 = 10;
/// The maximum number of clients to remember.
const MAX_CLIENTS: usize = 10_000;

/// The failed logins of the last minute: the time of each client's first one, and their number.
#[derive(Default)]
pub struct Logins(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Logins {
    /// Returns how long the client must wait before its next attempt, `None` if it need not wait.
    pub fn pause(&self, client: IpAddr) -> Option<Duration> {
        let clients = self.clients();
        let (first, number) = clients.get(&network(client))?;
        (*number >= LIMIT).then(|| rest(*first))
    }

    /// Counts and logs a failed attempt.
    pub fn failed(&self, client: IpAddr) {
        let mut clients = self.clients();
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        let failures = clients.entry(network(client));
        let (first, number) = failures.or_insert((Instant::now(), 0));
        *number += 1;
        tracing::warn!(%client, failures = number, "login failed: wrong token");
        if *number == LIMIT {
            let seconds = rest(*first).as_secs();
            tracing::warn!(%client, seconds, "too many failed logins, further ones are refused");
        }
    }

    /// Returns the clients whose time is not over.
    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, (Instant, u32)>> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, (first, _)| !rest(*first).is_zero());
        clients
    }
}

fn rest(first: Instant) -> Duration {
    WINDOW.saturating_sub(first.elapsed())
}

/// Returns what identifies a client: the address or, since a client usually has a whole network of
/// IPv6, the network.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let logins = Logins::default();
        let address = |text: &str| text.parse::<IpAddr>().expect(text);
        for number in 0..LIMIT {
            assert_eq!(logins.pause(address("2001:db8::1")), None);
            logins.failed(address(&format!("2001:db8::{number}:1")));
        }
        let pause = logins.pause(address("2001:db8::ffff")).expect("it waits");
        assert!(!pause.is_zero() && pause <= WINDOW, "{pause:?}");
        assert_eq!(logins.pause(address("2001:db8:0:1::1")), None);
        assert_eq!(logins.pause(address("192.0.2.1")), None);
    }
}
