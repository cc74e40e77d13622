//! The top of a page: the health, the problems, and four figures.

use std::fmt::Write;

use maud::{Markup, html};

use super::format::{elapsed, grouped, prose, rate, share};
use crate::health::{Health, Problem};
use crate::output::{self, count, short};
use crate::status::{FamilyView, STALE_SECONDS, Sample};
use crate::view::{HOUR_SECONDS, PairView, View};

/// The maximum number of problems to show.
const MAX_PROBLEMS: usize = 20;
/// The size of a sparkline.
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 40.0;
/// The maximum number of points. Of more values, each point is the largest of several neighbours.
const POINTS: usize = 120;

/// Renders the health of all pairs in a sentence.
pub fn health(view: &View, problems: &[Problem]) -> Markup {
    let health = view.health(problems);
    let families = view.of_pairs(|pair| &pair.families);
    let served = families.filter(|(_, family)| family.served).count();
    let number = roots(problems).count() as u64;
    html! {
        p.health.(health.name()) {
            strong { (health.name()) } " "
            @match health {
                Health::Healthy => { (grouped(served as i128)) (if served == 1 { " family is" } else { " families are" }) " served" }
                Health::Unknown => "The daemon has not seen the state of its servers and families yet",
                Health::Degraded | Health::Down => { (count(number, "problem", "problems")) }
            }
        }
        @for pair in &view.pairs {
            @if let Some(waiting) = waiting(pair, view.at) {
                p.waiting {
                    @if view.pairs.len() > 1 { (pair.name) ": " }
                    (waiting)
                }
            }
        }
    }
}

/// Renders what waits in Redis and when that is full, while hits do not reach MySQL.
fn waiting(pair: &PairView, now: u64) -> Option<Markup> {
    let is_known = !pair.redis.is_down() && pair.has_figures("families", now);
    if !is_known || !pair.is_blocked() {
        return None;
    }
    let total = pair.total(now);
    let fullest = pair.fullest();
    (total.pending > 0).then(|| html! {
        strong { (grouped(total.pending.into())) } (if total.pending == 1 { " id waits" } else { " ids wait" }) " in Redis"
        @if let Some(family) = fullest { ". " (filling(family, true)) } "."
    })
}

/// Renders how full the family is, and in which time it will be at the present rate.
fn filling(family: &FamilyView, is_blocked: bool) -> Markup {
    let left = family.seconds_until_full();
    html! {
        (family.name()) " has reached " (share(family.full)) " of " code { "max_pending" }
        @if let Some(seconds) = left.filter(|_| is_blocked && !family.is_full()) {
            ", and is full in " (short(seconds)) " at the present rate"
        }
    }
}

/// Returns the problems that are no consequences of others.
fn roots(problems: &[Problem]) -> impl Iterator<Item = &Problem> {
    problems.iter().filter(|one| one.caused_by.is_none())
}

/// Renders the problems, the worst first, each with its consequences.
pub fn problems(view: &View, problems: &[Problem]) -> Markup {
    let pairs = view.pairs.len();
    let number = roots(problems).count();
    html! {
        @if number > 0 {
            ol.problems aria-label="Problems" {
                @for root in roots(problems).take(MAX_PROBLEMS) { (problem(root, problems, pairs, view.at)) }
            }
            @if number > MAX_PROBLEMS { p { "And " (number - MAX_PROBLEMS) " more: run " code { (output::command("check")) } "." } }
        }
    }
}

fn problem(one: &Problem, all: &[Problem], pairs: usize, now: u64) -> Markup {
    let command = match pairs {
        1 => one.command.clone(),
        _ => format!("{} --pair {}", one.command, one.pair),
    };
    let consequences = all.iter().filter(|other| other.is_consequence_of(one));
    html! {
        li.(one.severity.name()) {
            p {
                @if pairs > 1 { (one.pair) ": " }
                strong { (prose(&one.problem)) }
                @if let Some(since) = one.since { span.quiet { " for " (elapsed(since, now)) } }
            }
            @if let Some(why) = &one.why { p.why { (prose(why)) } }
            p { (prose(one.what_to_do.trim_end_matches('.'))) "." }
            p.command { code { (command) } " " button.copy type="button" { "Copy" } }
            (folded(one, &consequences.collect::<Vec<_>>(), pairs))
        }
    }
}

/// Renders the consequences of an outage, which end with it. Several outages may have as many.
fn folded(root: &Problem, consequences: &[&Problem], pairs: usize) -> Markup {
    let number = consequences.len() as u64;
    html! {
        @if let Some(server) = root.server.as_ref().filter(|_| number > 0) {
            details id={ "because-of-" (root.pair) "-" (server) } {
                summary {
                    @if pairs > 1 { (root.pair) ": " }
                    (prose(&root.problem)) ": " (count(number, "consequence", "consequences"))
                }
                ul {
                    @for one in consequences {
                        li { (prose(&one.problem)) @if let Some(why) = &one.why { ": " span.why { (prose(why)) } } }
                    }
                }
            }
        }
    }
}

/// The figures of a family, or of all families of a pair. Those that are not known are blank.
pub struct Figures<'v> {
    /// The time in Unix seconds.
    pub now: u64,
    /// The present figures of Redis.
    pub waiting: Option<Sample>,
    /// The present hits per second, for kinds that count them.
    pub rate: Option<f64>,
    /// Rejects and drift in MySQL.
    pub open: Option<(u64, u64)>,
    pub history: &'v [Sample],
    /// The fullest family.
    pub fullest: Option<&'v FamilyView>,
    /// Hits do not reach MySQL at present.
    pub is_blocked: bool,
}

impl<'v> Figures<'v> {
    /// Returns the sums of a pair.
    pub fn of_pair(pair: &'v PairView, now: u64) -> Self {
        let is_known = !pair.redis.is_down() && pair.has_figures("families", now);
        let total = pair.total(now);
        Figures {
            now,
            waiting: is_known.then_some(total),
            rate: is_known.then_some(total.rate),
            open: has_overview(pair, now).then_some((total.rejects, total.drifted)),
            history: &pair.totals,
            fullest: pair.fullest(),
            is_blocked: pair.is_blocked(),
        }
    }

    pub fn of_family(pair: &'v PairView, family: &'v FamilyView, now: u64) -> Self {
        let drifted = pair.recount(&family.name()).map_or(0, |run| run.drifted);
        let is_known = pair.has_figures_of(family, now);
        Figures {
            now,
            waiting: is_known.then(|| family.sample(now)),
            rate: family.rate.filter(|_| is_known),
            open: has_overview(pair, now).then_some((family.rejects, drifted)),
            history: &family.history,
            fullest: Some(family).filter(|family| family.full > 0.0),
            is_blocked: pair.is_blocked(),
        }
    }

    /// Renders four figures, each with its history.
    pub fn render(&self) -> Markup {
        let line = |value: fn(&Sample) -> f64, scale: fn(f64) -> String| {
            let present = self.waiting.as_ref();
            sparkline(self.history, present, self.now, value, scale)
        };
        let whole = |value: f64| grouped(value as i128);
        let waiting = |text: fn(&Sample) -> String| self.waiting.as_ref().map(text);
        let oldest = waiting(|now| match now.oldest_seconds {
            0.0 => "none".to_owned(),
            seconds => short(seconds),
        });
        let pending = waiting(|now| grouped(now.pending.into()));
        let open = self.open.map(|(rejects, drifted)| {
            let [rejects, drifted] = [rejects, drifted].map(|number| grouped(number.into()));
            format!("{rejects}, {drifted}")
        });
        let fullest = self.fullest.filter(|_| self.waiting.is_some());
        let share = html! {
            @if let Some(family) = fullest { p.quiet { (filling(family, self.is_blocked)) } }
        };
        let rates = line(|total| total.rate, rate);
        let pendings = line(|total| total.pending as f64, whole);
        let ages = line(|total| total.oldest_seconds, short);
        let mut opens = line(|total| (total.rejects + total.drifted) as f64, whole);
        if self.open.is_none() {
            opens = Markup::default();
        }
        html! {
            div.figures {
                (figure("rate", "Hits per second", self.rate.map(rate), &rates))
                (figure("pending", "Ids waiting for MySQL", pending, &html! { (pendings) (share) }))
                (figure("oldest", "Oldest waiting hit", oldest, &ages))
                (figure("open", "Rejects, drift", open, &opens))
            }
        }
    }
}

/// Returns whether the figures that MySQL has are current.
fn has_overview(pair: &PairView, now: u64) -> bool {
    !pair.mysql.is_down() && pair.has_figures("overview", now)
}

/// Renders a figure, blank if its value is not known.
fn figure(name: &str, label: &str, value: Option<String>, below: &Markup) -> Markup {
    html! {
        div.figure id={ "figure-" (name) } {
            p.quiet { (label) }
            @match value {
                Some(value) => p.value { (value) },
                None => p.value title="not known at present" { "–" },
            }
            (below)
        }
    }
}

/// Draws a chart as small as a line of text: the values of the last hour at most, from 0 up, with
/// gaps where none were read. `scale` formats their maximum.
fn sparkline(
    history: &[Sample],
    present: Option<&Sample>,
    now: u64,
    value: fn(&Sample) -> f64,
    scale: fn(f64) -> String,
) -> Markup {
    let is_recent = |one: &&Sample| one.at <= now && now - one.at <= HOUR_SECONDS;
    let samples: Vec<_> = history.iter().chain(present).filter(is_recent).collect();
    let Some(first) = samples.first().map(|first| first.at).filter(|at| *at < now) else {
        return Markup::default();
    };
    let max = samples.iter().map(|one| value(one)).fold(0.0, f64::max);
    let x = |at: u64| WIDTH * at.saturating_sub(first) as f64 / (now - first) as f64;
    let y = |value: f64| (HEIGHT - 2.0) * (1.0 - value / max.max(f64::MIN_POSITIVE)) + 1.0;
    let neighbours = samples.len().div_ceil(POINTS).max(1);
    let mut lines = String::new();
    for unbroken in samples.chunk_by(|a, b| a.at.abs_diff(b.at) <= STALE_SECONDS) {
        let points = unbroken.chunks(neighbours).map(|some| {
            let largest = some.iter().map(|one| value(one)).fold(0.0, f64::max);
            (x(some[some.len() - 1].at), y(largest))
        });
        let start = unbroken[0];
        let _ = write!(lines, "M{:.0},{:.1}", x(start.at), y(value(start)));
        for (x, y) in points {
            let _ = write!(lines, "L{x:.0},{y:.1}");
        }
    }
    html! {
        svg.sparkline viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            path d=(lines) fill="none" stroke="currentColor" stroke-linecap="round" vector-effect="non-scaling-stroke" {}
        }
        span.scale { "max. " (scale(max)) ", last " (short((now - first) as f64)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(values: &[(u64, u64)], present: Option<Sample>, now: u64) -> String {
        let history: Vec<_> = values
            .iter()
            .map(|&(at, pending)| Sample {
                at,
                pending,
                ..Sample::default()
            })
            .collect();
        sparkline(
            &history,
            present.as_ref(),
            now,
            |one| one.pending as f64,
            |max| format!("{max:.0}"),
        )
        .into_string()
    }

    #[test]
    fn a_line_goes_through_its_values_and_states_its_time() {
        let line = drawn(&[(100, 0), (110, 5), (120, 10)], None, 120);
        assert!(
            line.contains("d=\"M0,39.0L0,39.0L120,20.0L240,1.0\""),
            "{line}"
        );
        assert!(line.contains("max. 10, last 20s"), "{line}");
        assert_eq!(drawn(&[(100, 7)], None, 100), "");
        assert_eq!(drawn(&[], None, 100), "");
        let mut many: Vec<_> = (0..1000).map(|at| (at, 1)).collect();
        many[500].1 = 7;
        let long = drawn(&many, None, 1000);
        assert!(long.contains("max. 7, last 16m"), "{long}");
        assert!(long.matches('L').count() <= POINTS, "{long}");
    }

    #[test]
    fn a_line_has_gaps_where_nothing_was_read() {
        let values = [(100, 5), (110, 5), (200, 5), (210, 5)];
        let line = drawn(&values, None, 340);
        assert!(
            line.contains("d=\"M0,1.0L0,1.0L10,1.0M100,1.0L100,1.0L110,1.0\""),
            "{line}"
        );
        let present = Sample {
            at: 340,
            pending: 5,
            ..Sample::default()
        };
        let to_present = drawn(&values, Some(present), 340);
        assert!(
            to_present.contains("L110,1.0M240,1.0L240,1.0\""),
            "{to_present}"
        );
        // an hour at most
        assert!(drawn(&[(100, 9), (3800, 5)], None, 3900).contains("max. 5, last 100s"));
    }
}
