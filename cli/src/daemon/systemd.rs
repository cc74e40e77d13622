//! What systemd is told, where it is who started the daemon (`Type=notify`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::interval;

/// The daemon listens and works on its pairs.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again; [`ready`] ends it.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// A line of `systemctl status`.
pub fn status(line: &str) {
    tell(&[NotifyState::Status(line)]);
}

/// Says that the daemon is alive, twice as often as is asked for. Never ends.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// Nobody listens where systemd did not start it.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}
