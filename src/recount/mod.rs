//! Recounting: counters are compared with the rows that they stand for, and what is proven to be missing or too much is
//! added, while everything counts (docs/protocol.md, section 9).

pub mod builder;
pub mod plan;
pub mod recounter;
pub mod run;
pub mod verdict;
