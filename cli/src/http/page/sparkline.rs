//! Sparklines: charts as small as words.

use std::fmt::Write;

use maud::{Markup, html};

const WIDTH: f64 = 90.0;
const HEIGHT: f64 = 16.0;

/// Draws the values from 0 up, or nothing if all are 0. The number beside it shows the current
/// value.
pub fn sparkline(values: impl Iterator<Item = f64> + Clone) -> Markup {
    let most = values.clone().fold(0.0, f64::max);
    let last = values.clone().count().saturating_sub(1).max(1) as f64;
    if most <= 0.0 {
        return Markup::default();
    }
    let mut points = String::new();
    for (at, value) in values.enumerate() {
        let (x, y) = (
            WIDTH * at as f64 / last,
            (HEIGHT - 1.0) * (1.0 - value / most) + 0.5,
        );
        let _ = write!(points, "{x:.0},{y:.1} ");
    }
    html! {
        svg.sparkline viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) width=(WIDTH) height=(HEIGHT) aria-hidden="true" focusable="false" {
            polyline points=(points.trim_end()) fill="none" stroke="currentColor" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_values() {
        let line = sparkline([0.0, 5.0, 10.0].into_iter()).into_string();
        assert!(line.contains("points=\"0,15.5 45,8.0 90,0.5\""), "{line}");
        assert_eq!(sparkline([0.0, 0.0].into_iter()).into_string(), "");
        assert_eq!(sparkline(std::iter::empty()).into_string(), "");
    }
}
