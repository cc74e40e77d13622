//! Tests of the servers and the network on which the project's tests rely.

mod clock;
mod disk;
mod older;
mod proxy;
mod servers;
