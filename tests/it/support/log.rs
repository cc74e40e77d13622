//! The log of a test on one thread.

use std::io::Read;
use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use super::*;

/// A second subscriber, which takes nothing. `tracing` remembers for each event, and for all
/// threads, whether any subscriber wants it. While only one subscriber exists, it asks the thread
/// that reaches the event first. If that is the thread of another test, it has no subscriber, and
/// the event would be missing in this log.
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
