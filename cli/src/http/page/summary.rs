//! The top of a page: the health, the problems, and four figures.

use std::fmt::Write;

use maud::{Markup, html};

use super::format::{elapsed, grouped, rate};
use crate::health::{Health, Problem};
use crate::output::{count, short};
use crate::status::Sample;
use crate::view::View;

/// The maximum number of problems to show.
const MAX_PROBLEMS: usize = 20;
/// The size of a sparkline.
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 40.0;
/// The maximum number of points. Of more values, the largest of neighbours are drawn.
const POINTS: usize = 120;

/// Renders the health of all pairs in a sentence.
pub fn health(view: &View, problems: &[Problem]) -> Markup {
    let health = view.health(problems);
    let families = view.of_pairs(|pair| &pair.families);
    let served = families.filter(|(_, family)| family.served).count() as u64;
    html! {
        p.health.(health.name()) {
            strong { (health.name()) } " "
            @match health {
                Health::Healthy => { (count(served, "family is", "families are")) " served" }
                Health::Unknown => "The daemon has not seen the state of its servers and families yet",
                Health::Degraded | Health::Down => { (count(problems.len() as u64, "problem", "problems")) }
            }
        }
    }
}

/// Renders the problems, the worst first.
pub fn problems(view: &View, problems: &[Problem]) -> Markup {
    let pairs = view.pairs.len();
    html! {
        @if !problems.is_empty() {
            ol.problems aria-label="Problems" {
                @for one in problems.iter().take(MAX_PROBLEMS) { (problem(one, pairs, view.at)) }
            }
            @if problems.len() > MAX_PROBLEMS { p { "And " (problems.len() - MAX_PROBLEMS) " more: run " code { "counterfoil check" } "." } }
        }
    }
}

fn problem(one: &Problem, pairs: usize, now: u64) -> Markup {
    let command = match pairs {
        1 => one.command.clone(),
        _ => format!("{} --pair {}", one.command, one.pair),
    };
    html! {
        li.(one.severity.name()) {
            p {
                @if pairs > 1 { (one.pair) ": " }
                strong { (one.problem) }
                @if let Some(since) = one.since { span.quiet { " for " (elapsed(since, now)) } }
            }
            @if let Some(why) = &one.why { p.why { (why) } }
            p { (one.what_to_do.trim_end_matches('.')) "." }
            p.command { code { (command) } " " button.copy type="button" { "Copy" } }
        }
    }
}

/// Renders four figures, each with its history.
pub fn figures(now: &Sample, history: &[Sample]) -> Markup {
    let line = |value: fn(&Sample) -> f64, scale: fn(f64) -> String| {
        let values: Vec<_> = history.iter().chain([now]).map(value).collect();
        sparkline(&values, scale)
    };
    let whole = |value: f64| grouped(value as i128);
    let oldest = match now.oldest_seconds {
        0.0 => "–".to_owned(),
        seconds => short(seconds),
    };
    let open = |total: &Sample| (total.rejects + total.drifted) as f64;
    html! {
        div.figures {
            (figure("rate", "Hits per second", &rate(now.rate), &line(|total| total.rate, rate)))
            (figure("pending", "Ids waiting for MySQL", &grouped(now.pending.into()), &line(|total| total.pending as f64, whole)))
            (figure("oldest", "Oldest waiting hit", &oldest, &line(|total| total.oldest_seconds, short)))
            (figure("open", "Rejects, drift", &format!("{}, {}", grouped(now.rejects.into()), grouped(now.drifted.into())), &line(open, whole)))
        }
    }
}

fn figure(name: &str, label: &str, value: &str, line: &Markup) -> Markup {
    html! {
        div.figure id={ "figure-" (name) } { p.quiet { (label) } p.value { (value) } (line) }
    }
}

/// Draws a chart as small as a line of text: values, the oldest first, from 0 up, or nothing if all are 0. `scale` formats their
/// maximum.
fn sparkline(values: &[f64], scale: impl Fn(f64) -> String) -> Markup {
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
