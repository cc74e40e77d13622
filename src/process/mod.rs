//! The state of this process: the connections of a pair, its families in use, and the work that
//! writers announce to the reconciler.

pub mod family;
pub mod runtime;
pub mod shared;
pub mod work;
