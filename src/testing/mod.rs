//! For the project's own tests: guards that can be taken out, and simulated time.

pub mod ablation;
pub mod simulated;
