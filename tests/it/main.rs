//! All tests on real servers, as one program: `./dev test cached::faults` runs a part of it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod activity;
mod buffered;
mod bundle;
mod cached;
mod campaign;
mod connection;
mod databases;
mod docs;
mod families;
mod layout;
mod lifecycle;
mod limits;
mod live_page;
mod memory;
mod metrics;
mod misuse;
mod mysql;
mod package;
mod readme;
mod recount;
mod registry;
mod removal;
mod scripts;
mod series;
mod service;
mod set_back;
mod support;
mod vectors;
mod visitors;
mod writer;
