//! Curves, drawn to `target/bench/NAME.svg`.

use std::path::PathBuf;

use plotters::prelude::*;

pub struct Curve {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 2] = [RGBColor(31, 119, 180), RGBColor(214, 39, 40)];

/// Draws the curves over a logarithmic axis, since tasks and ids are counted in powers.
pub fn draw(name: &str, across: &str, up: &str, curves: &[Curve]) {
    let path = folder().join(name).with_extension("svg");
    let (left, right) = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .fold((f64::MAX, 0.0), |(left, right), point| (point.0.min(left), point.0.max(right)));
    let top = curves.iter().flat_map(|curve| &curve.points).fold(0.0, |top, point| point.1.max(top)) * 1.1;
    let area = SVGBackend::new(&path, (800, 480)).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(&area)
        .margin(20)
        .x_label_area_size(40)
        .y_label_area_size(90)
        .build_cartesian_2d((left..right).log_scale(), 0.0..top)
        .unwrap();
    chart.configure_mesh().x_desc(across).y_desc(up).light_line_style(TRANSPARENT).draw().unwrap();
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)).point_size(3);
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2));
        chart.draw_series(line).unwrap().label(curve.name).legend(legend);
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).draw().unwrap();
    area.present().unwrap();
    println!("drawn: {}", path.display());
}

/// The folder of the curves, below cargo's own.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = target.join("bench");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
