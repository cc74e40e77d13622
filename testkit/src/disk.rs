//! A small disk that can be full.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;

/// A small file system in a server's directory, which disappears with it.
pub struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Mounts a disk. The error is the reason if this machine does not allow it.
    pub(crate) fn mount(process: &Process, megabytes: u32) -> Result<Self, String> {
        let dir = process.dir().join("disk");
        fs::create_dir(&dir).expect("a directory for the disk");
        // before the mount, so that the guard unmounts the disk even if this process is killed at
        // once
        process.unmount_at_end(&dir);
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&dir)
            .output()
            .map_err(|error| error.to_string())?;
        if mounted.status.success() {
            Ok(Disk { dir })
        } else {
            Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned())
        }
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Fills the disk.
    ///
    /// # Panics
    ///
    /// If writing fails although the disk is not full.
    pub fn fill(&self) {
        let mut rest = File::create(self.rest()).expect("a file");
        let full = loop {
            if let Err(error) = rest.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }

    /// Frees the space that [`fill`](Self::fill) took.
    ///
    /// # Panics
    ///
    /// If the disk was not filled.
    pub fn free(&self) {
        fs::remove_file(self.rest()).expect("the disk was filled");
    }

    fn rest(&self) -> PathBuf {
        self.dir.join("rest")
    }
}
