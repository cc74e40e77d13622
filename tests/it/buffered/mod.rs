mod api;
mod faults;
mod interleavings;
mod model;
