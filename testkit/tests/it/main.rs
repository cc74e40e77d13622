//! Tests of the servers and the network on which the project's tests rely.

mod proxy;
mod servers;
