//! Failed logins, counted by client, so that the log shows attempts, and is not filled by them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time in which failures are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The number of failures in the window that are logged.
const LIMIT: u32 = 10;
/// The maximum number of clients to remember.
const MAX_CLIENTS: usize = 10_000;

/// The failed logins of the last minute: the time of each client's first one, and their number.
#[derive(Default)]
pub struct Logins(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Logins {
    /// Counts a failed attempt, and logs it up to the limit. Beyond it, returns the time for which
    /// the client must wait.
    pub fn count_failure(&self, client: IpAddr) -> Option<Duration> {
        let mut clients = self.clients();
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        let failures = clients.entry(network(client));
        let (first, number) = failures.or_insert((Instant::now(), 0));
        *number = number.saturating_add(1);
        if *number > LIMIT {
            return Some(rest(*first));
        }
        tracing::warn!(%client, failures = number, "login failed: wrong token");
        if *number == LIMIT {
            let seconds = rest(*first).as_secs();
            tracing::warn!(%client, seconds, "too many failed logins, further ones are not logged");
        }
        None
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

/// Returns the address under which a client is counted. Of IPv6 that is its /64 network, because a
/// client can usually choose any address in it.
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
            let failed = logins.count_failure(address(&format!("2001:db8::{number}:1")));
            assert_eq!(failed, None);
        }
        let pause = logins
            .count_failure(address("2001:db8::ffff"))
            .expect("a pause");
        assert!(!pause.is_zero() && pause <= WINDOW, "{pause:?}");
        assert_eq!(logins.count_failure(address("2001:db8:0:1::1")), None);
        assert_eq!(logins.count_failure(address("192.0.2.1")), None);
    }
}
