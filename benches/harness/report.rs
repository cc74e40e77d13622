//! What a run found, as a table and as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use crate::bench::Found;

pub fn print(found: &Found) {
    if !found.figures.is_empty() {
        println!("\n{:28} {:>10} {:>8}  {:11}  what", "name", "figure", "target", "");
    }
    for (figure, value) in &found.figures {
        let reached = if figure.target.is_reached_by(*value) { "reached" } else { "not reached" };
        let (name, target) = (figure.name, figure.target.to_string());
        println!("{name:28} {value:10.2} {target:>8}  {reached:11}  {}", figure.what);
    }
    println!();
    for (name, value) in &found.absolute {
        println!("{name:44} {value:14.3}");
    }
}

/// One flat object, name: number.
pub fn write_json(found: &Found, path: &Path) {
    let figures = found.figures.iter().map(|(figure, value)| (figure.name, *value));
    let absolute = found.absolute.iter().map(|(name, value)| (name.as_str(), *value));
    let numbers: BTreeMap<&str, f64> = figures.chain(absolute).collect();
    let json = serde_json::to_string_pretty(&numbers).unwrap();
    std::fs::write(path, json + "\n").expect("the figures are written");
}
