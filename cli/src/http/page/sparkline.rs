//! Charts as small as a line of text, with the maximum as their scale.

use std::fmt::Write;

use maud::{Markup, html};

const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 40.0;
/// The maximum number of points. Of more values, the largest of neighbours are drawn.
const POINTS: usize = 120;

/// Draws values, the oldest first, from 0 up, or nothing if all are 0. `scale` formats their
/// maximum.
pub fn sparkline(values: &[f64], scale: impl Fn(f64) -> String) -> Markup {
    let max = values.iter().copied().fold(0.0, f64::max);
    if max <= 0.0 {
        return Markup::default();
    }
    let neighbours = values.len().div_ceil(POINTS).max(1);
    let largest = |some: &[f64]| some.iter().copied().fold(0.0, f64::max);
    let values: Vec<_> = values.chunks(neighbours).map(largest).collect();
    let last = values.len().saturating_sub(1).max(1) as f64;
    let mut points = String::new();
    for (at, value) in values.iter().enumerate() {
        let x = WIDTH * at as f64 / last;
        let y = (HEIGHT - 2.0) * (1.0 - value / max) + 1.0;
        let _ = write!(points, "{x:.0},{y:.1} ");
    }
    html! {
        svg.sparkline viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            polyline points=(points.trim_end()) fill="none" stroke="currentColor" vector-effect="non-scaling-stroke" {}
        }
        span.scale { "max. " (scale(max)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(values: &[f64]) -> String {
        sparkline(values, |max| format!("{max:.0}")).into_string()
    }

    #[test]
    fn a_line_goes_through_its_values() {
        let line = drawn(&[0.0, 5.0, 10.0]);
        assert!(
            line.contains("points=\"0,39.0 120,20.0 240,1.0\""),
            "{line}"
        );
        assert!(line.contains("max. 10"), "{line}");
        assert_eq!(drawn(&[0.0, 0.0]), "");
        assert_eq!(drawn(&[]), "");
        let mut many = vec![1.0; 1000];
        many[500] = 7.0;
        let line = drawn(&many);
        assert!(
            line.contains("max. 7") && line.matches(',').count() <= POINTS,
            "{line}"
        );
    }
}
