//! The program `counterfoil` in use, with real servers.

mod another_language;
mod client;
mod clients;
mod commands;
mod config;
mod daemon;
mod frameworks;
mod http;
mod outages;
mod page;
mod privileges;
mod prometheus;
mod restore;
mod security;
mod soak;
mod states;
mod support;
