//! The program `counterfoil` as it is used: started with real servers.

mod client;
mod daemon;
mod http;
mod page;
mod support;
