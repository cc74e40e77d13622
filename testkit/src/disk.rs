//! A small disk that can be full.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::statvfs;

use crate::process::Process;

/// The space that is left to fill after the disk was made smaller.
const REST: u64 = 1 << 20;

/// A small file system in a server's directory, which disappears with it.
pub struct Disk {
    dir: PathBuf,
    /// In bytes.
    size: u64,
}

impl Disk {
    /// Mounts a disk. The error is the reason if this machine does not allow it.
    pub(crate) fn mount(process: &Process, megabytes: u32) -> Result<Self, String> {
        let dir = process.dir().join("disk");
        fs::create_dir(&dir).expect("a directory for the disk");
        // before the mount, so that the guard unmounts the disk even if this process is killed at
        // once
        process.unmount_at_end(&dir);
        let size = u64::from(megabytes) << 20;
        let disk = Self { dir, size };
        disk.run_mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])?;
        Ok(disk)
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its folders, as paths in the server's directory.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).expect("the disk");
        let names = entries.map(|entry| entry.expect("an entry of the disk").file_name());
        let folders = names.filter(|name| self.dir.join(name).is_dir());
        folders.map(|name| Path::new("disk").join(name)).collect()
    }

    /// Fills the disk. That takes some milliseconds, whatever its size: the disk is made smaller
    /// first.
    ///
    /// # Panics
    ///
    /// If writing fails although the disk is not full.
    pub fn fill(&self) {
        let space = statvfs(&self.dir).expect("the space on the disk");
        let used = (space.f_blocks - space.f_bfree) * space.f_frsize;
        self.resize(self.size.min(used + REST));
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
        self.resize(self.size);
    }

    fn resize(&self, size: u64) {
        self.run_mount(&["-o", &format!("remount,size={size}")])
            .unwrap_or_else(|why| panic!("cannot resize {}: {why}", self.dir.display()));
    }

    fn run_mount(&self, args: &[&str]) -> Result<(), String> {
        let mounted = Command::new("mount")
            .args(args)
            .arg(&self.dir)
            .output()
            .map_err(|error| error.to_string())?;
        if mounted.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned())
        }
    }

    fn rest(&self) -> PathBuf {
        self.dir.join("rest")
    }
}
