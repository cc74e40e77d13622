//! The log of a test on one thread.

use std::io::Read;
use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use super::*;

/// A second subscriber, which takes nothing. While there is only one, `tracing` asks that of the
/// thread which first reaches an event whether it is wanted, and remembers the answer for all
/// threads. A thread of another test has none, so this log would lack the event.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

pub struct Log {
    file: tempfile::NamedTempFile,
    _subscriber: tracing::subscriber::DefaultGuard,
}

impl Log {
    /// Begins a log of this thread.
    pub fn begin() -> Self {
        LazyLock::force(&SECOND);
        let file = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Mutex::new(file.reopen().unwrap()))
            .finish();
        Log {
            file,
            _subscriber: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Returns the crate's lines of this level that contain the text.
    pub fn lines(&self, level: &str, text: &str) -> Vec<String> {
        let mut log = String::new();
        self.file
            .reopen()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        let is_it = |line: &&str| {
            [level, " counterfoil::", text]
                .iter()
                .all(|part| line.contains(part))
        };
        log.lines().filter(is_it).map(str::to_owned).collect()
    }
}
