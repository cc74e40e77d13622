//! The program `counterfoil` as it is used: started with real servers.

mod daemon;
mod privileges;
mod support;
