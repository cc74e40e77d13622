//! The program `counterfoil` as it is used: started with real servers.

mod commands;
mod daemon;
mod privileges;
mod support;
