//! Notifications to systemd, if it started the daemon (`Type=notify`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::interval;

/// Reports that the daemon listens and works on its pairs.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the daemon reloads its configuration. [`ready`] ends the reload.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sets the status line in `systemctl status`.
pub fn status(line: &str) {
    notify(&[NotifyState::Status(line)]);
}

/// Reports that the daemon is alive, twice as often as systemd requires. Never returns.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

/// Notifies systemd. Has no effect if systemd did not start the daemon.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}
