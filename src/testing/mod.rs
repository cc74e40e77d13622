//! Hooks for the project's own tests: removable guards, and simulated time.

pub mod ablation;
pub mod simulated;
