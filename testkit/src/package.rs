//! The client packages in `clients`, installed from their artifacts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The exit code of a command that lacks what it needs on this machine.
const SKIPPED: i32 = 77;

/// A client package for another language, by the name of its folder in `clients`.
#[derive(Clone, Copy, Debug)]
pub struct Package(pub &'static str);

impl Package {
    /// Returns the folder of all packages.
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("clients")
    }

    /// Returns the command `clients/LANGUAGE/dev COMMAND FOLDER`.
    pub fn dev(self, command: &str, installed: &Path) -> Command {
        let mut dev = Command::new(Self::folder().join(self.0).join("dev"));
        dev.arg(command).arg(installed).stdin(Stdio::null());
        dev
    }

    /// Builds the artifact and installs it below the target folder of the running program. Returns
    /// where, or why that is impossible on this machine.
    ///
    /// # Panics
    ///
    /// If it cannot be built or installed although its language is there.
    pub fn install(self) -> Result<PathBuf, String> {
        let program = std::env::current_exe().expect("the path of this program");
        let profile = program.parent().and_then(Path::parent);
        let profile = profile.expect("a test, an example or a benchmark");
        let folder = profile.with_file_name("packages").join(self.0);
        let mut install = self.dev("install", &folder);
        let ended = install.env("COUNTERFOIL_TARGET", profile).output();
        let ended = ended.unwrap_or_else(|e| panic!("clients/{}/dev: {e}", self.0));
        let printed = [ended.stdout, ended.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        match ended.status.code() {
            Some(0) => Ok(folder),
            Some(SKIPPED) => Err(printed),
            _ => panic!("the package for {} is not installed: {printed}", self.0),
        }
    }
}
