//! The client packages, as they are installed from their artifacts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::scenario::Need;

/// The exit code of a command that lacks what it needs on this machine.
const SKIPPED: i32 = 77;

/// A client package.
#[derive(Debug)]
pub struct Language {
    /// The name of its folder.
    pub name: &'static str,
    pub libraries: &'static [Library],
}

/// A library that the package is built on.
#[derive(Debug)]
pub struct Library {
    pub name: &'static str,
    /// What scenarios may need that it lacks, with the reason.
    pub lacks: &'static [(Need, &'static str)],
}

pub const RUST: Language = Language {
    name: "rust",
    libraries: &[Library {
        name: "counterfoil",
        lacks: &[],
    }],
};

/// Returns the folder of the packages.
pub fn clients() -> PathBuf {
    let cli = Path::new(env!("CARGO_MANIFEST_DIR"));
    cli.parent().expect("the repository").join("clients")
}

impl Language {
    /// Returns the command `clients/LANGUAGE/dev NAME FOLDER`.
    pub fn dev(&self, name: &str, installed: &Path) -> Command {
        let mut command = Command::new(clients().join(self.name).join("dev"));
        command.arg(name).arg(installed);
        command
    }

    /// Builds the package's artifact and installs it, or returns why that is impossible here.
    ///
    /// # Panics
    ///
    /// If the package cannot be built or installed although its language is there.
    pub fn install(&self) -> Result<PathBuf, String> {
        let test = std::env::current_exe().expect("the path of this program");
        let debug = test.parent().and_then(Path::parent).expect("target/debug");
        let folder = debug
            .parent()
            .expect("target")
            .join("clients")
            .join(self.name);
        let mut install = self.dev("install", &folder);
        install
            .stdin(Stdio::null())
            .env("COUNTERFOIL_TARGET", debug);
        let ended = install.output();
        let ended = ended.expect("clients/LANGUAGE/dev runs");
        let printed =
            [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        match ended.status.code() {
            Some(0) => Ok(folder),
            Some(SKIPPED) => Err(printed.concat()),
            _ => panic!("{} is not installed: {}", self.name, printed.concat()),
        }
    }

    /// Returns the folder of the scripts in the installed package.
    pub fn scripts(&self, installed: &Path) -> PathBuf {
        let printed =
            run(&mut self.dev("scripts", installed)).unwrap_or_else(|error| panic!("{error}"));
        PathBuf::from(printed.trim_end())
    }
}

/// Runs a command, and returns what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let ended = command.stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if ended.status.success() {
        return Ok(text(&ended.stdout));
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        ended.status,
        text(&ended.stdout),
        text(&ended.stderr)
    ))
}
