//! Notifications to systemd, which have no effect if it did not start the daemon (`Type=notify`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::interval;

pub fn notify(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

/// Reports that the daemon reloads its configuration. `Ready` ends the reload.
pub fn notify_reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        let _ = sd_notify::notify(&[NotifyState::Reloading, now]);
    }
}

/// Sets the line of a pair in `systemctl status`.
pub fn set_status(pair: &str, line: &str) {
    notify(NotifyState::Status(&format!("pair {pair}: {line}")));
}

/// Reports that the daemon is alive, twice as often as systemd requires. Never returns.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        notify(NotifyState::Watchdog);
    }
}
