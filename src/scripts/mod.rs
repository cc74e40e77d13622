//! The Lua bundle, and typed calls of each kind.

pub mod activity;
pub mod buffered;
pub mod bundle;
pub mod cached;
pub mod fence;
pub mod keys;
pub mod partition;
pub mod series;
pub mod visitors;
