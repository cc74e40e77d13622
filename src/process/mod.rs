//! The state of this process: the connections of a pair, its families in use, the work that writers
//! announce to the reconciler, and helpers for its tasks.

pub mod family;
pub mod registration;
pub mod runtime;
pub mod shared;
pub mod tasks;
pub mod work;
