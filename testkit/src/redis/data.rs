//! What a Redis has on its disk: the append-only file, or a dump.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::{RedisServer, until};
use crate::backup::Copies;

/// The files and folders that Redis loads when it starts. Append-only files of Redis 7 are in a
/// folder.
const DATA: [&str; 3] = [DUMP, "appendonly.aof", "appendonlydir"];
const DUMP: &str = "dump.rdb";

/// A copy of a Redis's data, in that server's directory. Dropping this handle removes the copy.
pub struct Dump(Copies);

impl RedisServer {
    /// Copies the append-only file, while the server is paused. A server without one writes a dump
    /// (SAVE) that is copied.
    ///
    /// The copy has every write that was acknowledged before. With `"everysec"` it may lack those
    /// that [are not in the file yet](super::RedisOptions::aof).
    ///
    /// # Panics
    ///
    /// If the server writes no dump, or copying fails.
    pub async fn back_up(&self) -> Dump {
        if !self.has_aof() {
            // Redis refuses while it takes a snapshot
            until("a dump", async || self.run::<()>("SAVE").await.is_ok()).await;
        }
        let dump = Dump(Copies::of(&self.process, &self.folder, &DATA));
        self.forget_dump();
        dump
    }

    /// Kills the server, replaces its data by a dump and starts it again. Returns when it has loaded
    /// the data. What was written since the dump is lost. A dump of another server is possible, if
    /// that has an append-only file too, or if neither has one.
    ///
    /// # Panics
    ///
    /// If copying fails, or the server does not start.
    pub async fn restore(&self, dump: &Dump) {
        self.kill();
        dump.0.put_back(&self.folder, &DATA);
        self.start_again().await;
        self.forget_dump();
    }

    /// Removes the dump of a server without persistence. Otherwise it would load that dump after a
    /// kill, which is to lose everything.
    fn forget_dump(&self) {
        if !self.has_aof() && self.setting("save").is_empty() {
            fs::remove_file(self.folder.join(DUMP)).expect("remove the dump");
        }
    }

    fn has_aof(&self) -> bool {
        self.setting("appendonly") == "yes"
    }

    /// Returns the value that the server was started with.
    fn setting(&self, name: &str) -> &str {
        let mut settings = self.settings.iter().rev();
        let setting = settings.find(|(known, _)| known == name);
        setting.map_or("", |(_, value)| value)
    }

    /// Returns the length in bytes of the current append-only file.
    ///
    /// # Panics
    ///
    /// If the server has no append-only file.
    pub fn aof_len(&self) -> u64 {
        let path = self.aof();
        match fs::metadata(&path) {
            Ok(file) => file.len(),
            Err(e) => self
                .process
                .fail(&format!("no append-only file {}: {e}", path.display())),
        }
    }

    /// Truncates the append-only file to an earlier [`aof_len`](Self::aof_len). Later writes are
    /// lost. So is a write across the cut, which Redis drops when it loads the file.
    ///
    /// # Panics
    ///
    /// If the server is running, or the file is shorter than `len`.
    pub fn cut_aof(&self, len: u64) {
        assert!(
            !self.process.is_up(),
            "kill the server before its append-only file is cut"
        );
        let present = self.aof_len();
        assert!(
            len <= present,
            "the append-only file has {present} bytes, it cannot be cut back to {len}"
        );
        File::options()
            .write(true)
            .open(self.aof())
            .and_then(|file| file.set_len(len))
            .expect("cut the append-only file");
    }

    /// Returns the path of the append-only file. Redis 7 has a folder whose manifest names the
    /// increment in use; older versions have one file.
    fn aof(&self) -> PathBuf {
        let folder = self.folder.join("appendonlydir");
        let Ok(manifest) = fs::read_to_string(folder.join("appendonly.aof.manifest")) else {
            return self.folder.join("appendonly.aof");
        };
        // "file appendonly.aof.1.incr.aof seq 1 type i", followed by more pairs in Redis 8; the
        // last line is in use.
        let word_after = |line: &str, key: &str| {
            let mut words = line.split_whitespace();
            words
                .find(|word| *word == key)
                .and_then(|_| words.next())
                .map(str::to_owned)
        };
        let mut increments = manifest
            .lines()
            .rev()
            .filter(|line| word_after(line, "type").as_deref() == Some("i"));
        match increments.next().and_then(|line| word_after(line, "file")) {
            Some(name) => folder.join(name),
            None => self.process.fail(&format!(
                "no increment in the append-only file's manifest:\n{manifest}"
            )),
        }
    }

    /// Returns how often the server found its append-only file torn by a kill.
    pub(super) fn torn_files(&self) -> usize {
        let log = fs::read_to_string(self.process.dir().join("log"));
        log.map_or(0, |log| log.matches("Truncating the AOF").count())
    }

    /// Writes the append-only file anew, as operators must after a crash that tore it. Without
    /// that, Redis would execute half of a script when it starts for the second time
    /// (docs/operations.md, "After a crash of Redis").
    pub(super) async fn rewrite_aof(&self) {
        let rewrite: Result<String, _> = self.run("BGREWRITEAOF").await;
        rewrite.expect("the file is written anew");
        loop {
            let state: String = self.run("INFO persistence").await.expect("INFO");
            if state.contains("aof_rewrite_in_progress:0") {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}
