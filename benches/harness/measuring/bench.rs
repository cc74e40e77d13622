//! One run: the size of its measurements, and their results.

use std::time::Duration;

use super::figures::{Figure, Found};
use super::servers::Servers;

pub struct Bench {
    pub servers: Servers,
    quick: bool,
    names: Vec<String>,
    found: Found,
}

impl Bench {
    pub fn new(quick: bool, names: Vec<String>) -> Self {
        Bench {
            servers: Servers::default(),
            quick,
            names,
            found: Found::default(),
        }
    }

    /// Returns whether one of these was requested. If so, prints them, since a measurement may take
    /// a minute.
    pub fn wants(&self, figures: &[&str]) -> bool {
        let asked_for =
            |figure: &&str| self.names.iter().any(|name| figure.contains(name.as_str()));
        let wanted = self.names.is_empty() || figures.iter().any(asked_for);
        if wanted {
            println!("measuring {}", figures.join(", "));
        }
        wanted
    }

    /// Returns `quick` in a quick run, `full` otherwise.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the number of rounds. It is even, so that each side goes first equally often.
    pub fn rounds(&self) -> usize {
        self.size(8, 4)
    }

    /// Returns the time that one side runs in one round.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.size(1500, 400))
    }

    pub fn figure(&mut self, figure: Figure, value: f64) {
        self.found.figures.push((figure, value));
    }

    pub fn absolute(&mut self, name: impl Into<String>, value: f64) {
        self.found.absolute.push((name.into(), value));
    }

    pub fn found(&self) -> &Found {
        &self.found
    }
}
