//! Older states of a server's data.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tempfile::TempDir;

use crate::process::Process;

/// Copies of files and folders of a server. They are in its directory, and are removed when this
/// handle is dropped.
pub(crate) struct Copies(TempDir);

impl Copies {
    /// Copies those of `names` that exist in `folder`, while the server is paused. So all of them
    /// are of one moment, like those of a server that was killed.
    pub fn of(process: &Process, folder: &Path, names: &[impl AsRef<Path>]) -> Self {
        let copies = TempDir::with_prefix_in("backup-", process.dir()).expect("create a directory");
        process
            .while_paused(|| copy_these(folder, copies.path(), names))
            .unwrap_or_else(|e| panic!("cannot copy {}: {e}", folder.display()));
        Self(copies)
    }

    /// Replaces all of `names` in `folder` by their copies, and removes those that have none.
    pub fn put_back(&self, folder: &Path, names: &[impl AsRef<Path>]) {
        remove_these(folder, names)
            .and_then(|()| copy_these(self.0.path(), folder, names))
            .unwrap_or_else(|e| panic!("cannot restore {}: {e}", folder.display()));
    }
}

fn copy_these(from: &Path, to: &Path, names: &[impl AsRef<Path>]) -> io::Result<()> {
    for name in names {
        let (from, to) = (from.join(name), to.join(name));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        match copy_all(&from, &to) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// Removes the files and folders of these names.
fn remove_these(folder: &Path, names: &[impl AsRef<Path>]) -> io::Result<()> {
    for name in names {
        let path = folder.join(name);
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else if path.exists() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Copies a file, or a folder with all that it contains.
pub(crate) fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    if metadata.is_file() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir(to)?;
    fs::set_permissions(to, metadata.permissions())?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy_all(&from.join(&name), &to.join(name))?;
    }
    Ok(())
}
