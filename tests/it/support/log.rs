//! The log of a test on one thread.

use std::io::Read;

use super::*;

pub struct Log {
    file: tempfile::NamedTempFile,
    _subscriber: tracing::subscriber::DefaultGuard,
}

impl Log {
    /// Begins a log of this thread.
    pub fn begin() -> Self {
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
