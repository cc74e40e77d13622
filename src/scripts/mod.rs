//! The Lua bundle, and typed calls of its scripts.

pub mod bundle;
pub mod counting;
pub mod fence;
pub mod home;
pub mod keys;
pub mod partition;
pub mod random;
