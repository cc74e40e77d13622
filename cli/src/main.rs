//! The command `counterfoil`: a daemon that brings counters from Redis to MySQL, and tools for
//! operators.

mod arguments;
mod certificates;
mod commands;
mod config;
mod daemon;
mod exit;
mod families;
mod health;
mod http;
mod latency;
mod limits;
mod metrics;
mod output;
mod pair;
mod poll;
mod probe;
mod reason;
mod rejects;
mod signals;
mod state;
mod status;
mod view;

use std::panic::AssertUnwindSafe;

use clap::Parser;
use futures_util::FutureExt;

use crate::arguments::Arguments;
use crate::exit::{Exit, Failure};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[tokio::main]
async fn main() -> Exit {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Ok
            };
        }
    };
    let executed = AssertUnwindSafe(commands::execute(arguments)).catch_unwind();
    // the panic has printed its message
    let ended = executed.await.unwrap_or_else(|_| {
        let message = "the command ended by a panic, which is a bug of counterfoil or a library";
        Err(Failure::critical(message))
    });
    ended.unwrap_or_else(|Failure { exit, message }| {
        output::print_message(&format!("counterfoil: {message}"));
        exit
    })
}
