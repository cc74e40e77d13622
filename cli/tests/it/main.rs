//! The program `counterfoil` in use, with real servers.

mod client;
mod commands;
mod daemon;
mod http;
mod page;
mod privileges;
mod restore;
mod security;
mod soak;
mod support;
