//! Hooks for the project's own tests: removable guards, resumed machines, and simulated time.

pub mod ablation;
pub mod resumed;
pub mod simulated;
