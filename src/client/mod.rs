//! The types that an application holds: the entry point, and a handle for each kind of counter.

pub mod activity;
pub mod any;
pub mod backlogs;
pub mod buffered;
pub mod builder;
pub mod cached;
pub mod connect;
pub mod counterfoil;
pub mod exact;
pub mod family;
pub mod handle;
pub mod open;
pub mod outcome;
pub mod pages;
pub mod read;
pub mod reconfigure;
pub mod remove;
pub mod seeding;
pub mod series;
pub mod shutdown;
pub mod visitors;
