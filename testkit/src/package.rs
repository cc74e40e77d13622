//! The client packages in `clients`, installed from their artifacts, and the sample applications in
//! `examples`.

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
        dev(&Self::folder().join(self.0), command, installed)
    }

    /// Builds the artifact and installs it below the target folder of the running program. Returns
    /// where, or why that is impossible on this machine.
    ///
    /// # Panics
    ///
    /// If it cannot be built or installed although its language is there.
    pub fn install(self) -> Result<PathBuf, String> {
        install(&Self::folder().join(self.0), "packages", self.0)
    }
}

/// A sample application of a framework, by the name of its folder in `examples`.
#[derive(Clone, Copy, Debug)]
pub struct Sample(pub &'static str);

impl Sample {
    /// Returns the folder of the sample.
    pub fn folder(self) -> PathBuf {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples");
        examples.join(self.0)
    }

    /// Returns the command `examples/NAME/dev COMMAND FOLDER`.
    pub fn dev(self, command: &str, installed: &Path) -> Command {
        dev(&self.folder(), command, installed)
    }

    /// Installs the framework and the sample as [`Package::install`] does.
    ///
    /// # Panics
    ///
    /// If it cannot be installed although its language is there.
    pub fn install(self) -> Result<PathBuf, String> {
        install(&self.folder(), "frameworks", self.0)
    }
}

fn dev(folder: &Path, command: &str, installed: &Path) -> Command {
    let mut dev = Command::new(folder.join("dev"));
    dev.arg(command).arg(installed).stdin(Stdio::null());
    // a sample that builds programs uses the client packages that are installed there
    dev.env("COUNTERFOIL_PACKAGES", profile().with_file_name("packages"));
    dev
}

fn install(folder: &Path, kind: &str, name: &str) -> Result<PathBuf, String> {
    let installed = profile().with_file_name(kind).join(name);
    let mut install = dev(folder, "install", &installed);
    let output = install
        .env("COUNTERFOIL_TARGET", profile())
        .output()
        .unwrap_or_else(|e| panic!("{}/dev: {e}", folder.display()));
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    match output.status.code() {
        Some(0) => Ok(installed),
        Some(SKIPPED) => Err(printed),
        _ => panic!("{} is not installed: {printed}", folder.display()),
    }
}

/// Returns the folder of the running program's profile, such as `target/debug`.
fn profile() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let profile = program.parent().and_then(Path::parent);
    profile
        .expect("a test, an example or a benchmark")
        .to_owned()
}
