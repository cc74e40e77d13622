//! The client packages, as they are installed from their artifacts.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::Package;

use super::scenario::Need;

/// A client package.
#[derive(Debug)]
pub struct Language {
    pub package: Package,
    pub libraries: &'static [Library],
}

/// A library that the package is built on.
#[derive(Debug)]
pub struct Library {
    pub name: &'static str,
    /// What scenarios may need that it lacks, with the reason.
    pub lacks: &'static [(Need, &'static str)],
}

const ONE_AT_A_TIME: (Need, &str) = (Need::GroupCommit, "a process makes one call at a time");

/// The stand-in of a package for an application's tests: its calls in memory.
pub const STAND_IN: Library = Library {
    name: "testing",
    lacks: &[],
};

pub const PYTHON: Language = Language {
    package: Package("python"),
    libraries: &[
        Library {
            name: "redis-py",
            lacks: &[],
        },
        Library {
            name: "asyncio",
            lacks: &[],
        },
    ],
};
pub const NODE: Language = Language {
    package: Package("node"),
    libraries: &[
        Library {
            name: "ioredis",
            lacks: &[],
        },
        Library {
            name: "node-redis",
            lacks: &[],
        },
    ],
};
pub const PHP: Language = Language {
    package: Package("php"),
    libraries: &[
        Library {
            name: "phpredis",
            lacks: &[ONE_AT_A_TIME],
        },
        Library {
            name: "predis",
            lacks: &[ONE_AT_A_TIME],
        },
    ],
};
pub const RUBY: Language = Language {
    package: Package("ruby"),
    libraries: &[
        Library {
            name: "redis",
            lacks: &[],
        },
        Library {
            name: "redis-client",
            lacks: &[],
        },
    ],
};
pub const GO: Language = Language {
    package: Package("go"),
    libraries: &[Library {
        name: "go-redis",
        lacks: &[(Need::Clock, "Go reads the clock without the C library")],
    }],
};
pub const RUST: Language = Language {
    package: Package("rust"),
    libraries: &[Library {
        name: "counterfoil",
        lacks: &[
            (
                Need::Announces,
                "a program in Rust configures its families itself",
            ),
            (Need::Description, "the crate opens families itself"),
        ],
    }],
};

impl Language {
    /// Returns the documents with a program for the package: its README, and the project's, which
    /// has a part of a program for Go.
    pub fn readmes(&self) -> Vec<PathBuf> {
        let own = Package::folder().join(self.package.0).join("README.md");
        let projects = Package::folder().with_file_name("README.md");
        match self.package.0 {
            "rust" => vec![],
            "go" => vec![own],
            _ => vec![own, projects],
        }
    }
}

/// Returns the folder of the scripts in an installed package.
pub fn scripts(package: Package, installed: &Path) -> PathBuf {
    let printed = run(&mut package.dev("scripts", installed));
    PathBuf::from(printed.unwrap_or_else(|error| panic!("{error}")).trim_end())
}

/// Runs a command, and returns what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let ended = command.output();
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
