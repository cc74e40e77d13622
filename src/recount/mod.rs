//! The recount: compares counters with the rows that they count, and adds proven differences while
//! counting continues (docs/protocol.md, section 9).

pub mod builder;
pub mod plan;
pub mod recounter;
pub mod run;
pub mod verdict;
