//! The comparison of counters with the rows that they count, and their correction.

mod api;
mod faults;
mod interleavings;
