//! Figures, their targets, and their output as a table, as JSON and as curves.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

/// A figure with a target.
#[derive(Clone, Copy)]
pub struct Figure {
    pub name: &'static str,
    /// The two sides of the comparison, in plain words.
    pub what: &'static str,
    pub target: Target,
}

#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub fn is_reached_by(self, value: f64) -> bool {
        match self {
            Target::AtLeast(limit) => value >= limit,
            Target::AtMost(limit) => value <= limit,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtLeast(limit) => write!(f, ">= {limit}"),
            Target::AtMost(limit) => write!(f, "<= {limit}"),
        }
    }
}

/// The results of a run, in the order of measurement.
#[derive(Default)]
pub struct Found {
    pub figures: Vec<(Figure, f64)>,
    /// The absolute numbers behind the figures: name, number.
    pub absolute: Vec<(String, f64)>,
}

impl Found {
    /// Prints the results as a table.
    pub fn print(&self) {
        if !self.figures.is_empty() {
            println!(
                "\n{:28} {:>10} {:>8}  {:11}  what",
                "name", "figure", "target", ""
            );
        }
        for (figure, value) in &self.figures {
            let reached = if figure.target.is_reached_by(*value) {
                "reached"
            } else {
                "not reached"
            };
            let (name, target) = (figure.name, figure.target.to_string());
            println!(
                "{name:28} {value:10.2} {target:>8}  {reached:11}  {}",
                figure.what
            );
        }
        println!();
        for (name, value) in &self.absolute {
            println!("{name:44} {value:14.3}");
        }
    }

    /// Writes the results as one flat JSON object, name: number.
    pub fn write_json(&self, path: &Path) {
        let figures = self
            .figures
            .iter()
            .map(|(figure, value)| (figure.name, *value));
        let absolute = self
            .absolute
            .iter()
            .map(|(name, value)| (name.as_str(), *value));
        let numbers: BTreeMap<&str, f64> = figures.chain(absolute).collect();
        let json = serde_json::to_string_pretty(&numbers).unwrap();
        std::fs::write(path, json + "\n").expect("the figures are written");
    }
}

pub struct Curve {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 2] = [RGBColor(31, 119, 180), RGBColor(214, 39, 40)];

/// Draws the curves to `target/bench/NAME.svg`. The x-axis is logarithmic, since tasks and ids grow
/// by powers.
pub fn draw(name: &str, across: &str, up: &str, curves: &[Curve]) {
    let path = folder().join(name).with_extension("svg");
    let (left, right) = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .fold((f64::MAX, 0.0), |(left, right), point| {
            (point.0.min(left), point.0.max(right))
        });
    let top = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .fold(0.0, |top, point| point.1.max(top))
        * 1.1;
    let area = SVGBackend::new(&path, (800, 480)).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(&area)
        .margin(20)
        .x_label_area_size(40)
        .y_label_area_size(90)
        .build_cartesian_2d((left..right).log_scale(), 0.0..top)
        .unwrap();
    chart
        .configure_mesh()
        .x_desc(across)
        .y_desc(up)
        .light_line_style(TRANSPARENT)
        .draw()
        .unwrap();
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let line =
            LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)).point_size(3);
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2));
        chart
            .draw_series(line)
            .unwrap()
            .label(curve.name)
            .legend(legend);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .unwrap();
    area.present().unwrap();
    println!("drawn: {}", path.display());
}

/// Returns the folder of the curves, in cargo's target directory.
fn folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = target.join("bench");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
