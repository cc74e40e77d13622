//! A figure: what it compares, and what it is to reach.

use std::fmt;

/// A figure that is to reach something.
#[derive(Clone, Copy)]
pub struct Figure {
    pub name: &'static str,
    /// What against what, in plain words.
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
