//! Tests of the servers and the network on which the project's tests rely.

mod failover;
mod proxy;
mod servers;
