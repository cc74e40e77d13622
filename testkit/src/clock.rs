//! A clock of a server's own, which can step.
//!
//! libfaketime does not do: with Debian's Redis it waits for itself, since jemalloc reads the clock
//! while the library starts. It also leaves files in /dev/shm when a server is killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::process::Process;

/// The source of the library that a server's program is started with.
const SOURCE: &str = include_str!("clock.c");

/// A clock, which is a file that the server's library maps.
pub(crate) struct Clock {
    library: &'static Path,
    file: PathBuf,
}

impl Clock {
    /// Creates a clock that is right.
    pub fn new(process: &Process, library: &'static Path) -> Self {
        let file = process.dir().join("clock");
        std::fs::write(&file, 0_i64.to_ne_bytes()).expect("a file for the clock");
        Self { library, file }
    }

    /// Returns the words before a program that give it this clock.
    pub fn words(&self) -> [String; 3] {
        [
            "/usr/bin/env".to_owned(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("CLOCK_OFFSET={}", self.file.display()),
        ]
    }

    /// Steps the clock by nanoseconds. The server must not read the clock meanwhile: it could see
    /// half of the number.
    pub fn step(&self, by: i64) {
        let file = File::options().read(true).write(true).open(&self.file);
        let file = file.expect("the clock");
        let mut offset = [0; 8];
        file.read_exact_at(&mut offset, 0).expect("read the clock");
        let offset = i64::from_ne_bytes(offset).checked_add(by).expect("a time");
        // in place, since the server has mapped the file
        file.write_all_at(&offset.to_ne_bytes(), 0)
            .expect("set the clock");
    }
}

/// Returns a step of a clock in nanoseconds.
pub(crate) fn nanoseconds(step: Duration) -> i64 {
    i64::try_from(step.as_nanos()).expect("a step within centuries")
}

/// Builds the library, once in this program. The error is the reason if this machine does not
/// allow it.
pub(crate) fn library() -> Result<&'static Path, String> {
    // the process runs nothing: it removes the library at the end
    static LIBRARY: OnceLock<Result<(Process, PathBuf), String>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| {
        if !cfg!(target_os = "linux") {
            return Err("the clock of a single server can step on Linux only".to_owned());
        }
        let process = Process::new();
        let library = process.dir().join("clock.so");
        let source = process.dir().join("clock.c");
        std::fs::write(&source, SOURCE).expect("write the clock's source");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .output()
            .map_err(|error| format!("cc, which builds the clock, does not run: {error}"))?;
        if built.status.success() {
            Ok((process, library))
        } else {
            Err(String::from_utf8_lossy(&built.stderr).trim().to_owned())
        }
    });
    let built = built.as_ref().map_err(String::clone)?;
    Ok(&built.1)
}
