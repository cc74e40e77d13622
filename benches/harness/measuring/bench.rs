//! One run: how much is measured, and what was found.

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
        Bench { servers: Servers::default(), quick, names, found: Found::default() }
    }

    /// Whether one of these was asked for; says so, since a measurement may take a minute.
    pub fn wants(&self, figures: &[&str]) -> bool {
        let asked_for = |figure: &&str| self.names.iter().any(|name| figure.contains(name.as_str()));
        let wanted = self.names.is_empty() || figures.iter().any(asked_for);
        if wanted {
            println!("measuring {}", figures.join(", "));
        }
        wanted
    }

    /// One of two sizes.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How often both sides are measured: an even number, so that each side is first as often as the other.
    pub fn rounds(&self) -> usize {
        self.size(8, 4)
    }

    /// How long one side runs in one round.
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
