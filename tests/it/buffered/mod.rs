mod api;
mod faults;
mod interleavings;
mod model;
mod set_back;
