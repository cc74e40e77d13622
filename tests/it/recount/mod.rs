//! Counters compared with the rows that they stand for, and corrected.

mod api;
mod faults;
mod interleavings;
