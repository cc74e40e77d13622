//! One run: how much is measured, and what was found.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::figure::Figure;
use crate::servers::Servers;

pub struct Bench {
    pub servers: Servers,
    quick: bool,
    names: Vec<String>,
    found: Found,
}

/// What a run found, in the order in which it was measured.
#[derive(Default)]
pub struct Found {
    pub figures: Vec<(Figure, f64)>,
    /// Beside the figures, what they were made of: name, number.
    pub absolute: Vec<(String, f64)>,
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

impl Found {
    /// Prints it as a table.
    pub fn print(&self) {
        if !self.figures.is_empty() {
            println!("\n{:28} {:>10} {:>8}  {:11}  what", "name", "figure", "target", "");
        }
        for (figure, value) in &self.figures {
            let reached = if figure.target.is_reached_by(*value) { "reached" } else { "not reached" };
            let (name, target) = (figure.name, figure.target.to_string());
            println!("{name:28} {value:10.2} {target:>8}  {reached:11}  {}", figure.what);
        }
        println!();
        for (name, value) in &self.absolute {
            println!("{name:44} {value:14.3}");
        }
    }

    /// Writes it as one flat JSON object, name: number.
    pub fn write_json(&self, path: &Path) {
        let figures = self.figures.iter().map(|(figure, value)| (figure.name, *value));
        let absolute = self.absolute.iter().map(|(name, value)| (name.as_str(), *value));
        let numbers: BTreeMap<&str, f64> = figures.chain(absolute).collect();
        let json = serde_json::to_string_pretty(&numbers).unwrap();
        std::fs::write(path, json + "\n").expect("the figures are written");
    }
}
