//! The types that an application holds: the entry point, and a handle for each kind of counter.

pub mod activity;
pub mod any;
pub mod buffered;
pub mod cached;
pub mod counterfoil;
pub mod family;
pub mod handle;
pub mod open;
pub mod outcome;
pub mod pages;
pub mod read;
pub mod seeding;
pub mod series;
pub mod visitors;
