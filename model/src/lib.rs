//! The protocol of counterfoil as executable models.
//!
//! A model is a small case: a few hits, one or two workers, a crash or two. [stateright] visits
//! every order in which the steps of that case can happen and checks the properties of each model
//! in every state. Properties come in two kinds: `always` properties state what the protocol
//! promises, and `sometimes` properties name what must be reachable, so that a model that gets
//! nowhere fails too.
//!
//! | Model | Part of the protocol |
//! |---|---|
//! | [`Deltas`](deltas::Deltas) | buffer, batch, ledger, exact reads, and a Redis that was set back |
//! | [`Fence`](fence::Fence) | calls that arrive more than once, told apart by epochs |
//! | [`Requests`](requests::Requests) | hits with a name from the application, which any process may request again |
//! | [`Cached`](cached::Cached) | counters whose value is kept in Redis: tickets, seeds, saves, deletion |
//! | [`AddedRows`](recount::AddedRows) | recounting a counter whose rows are only added |
//! | [`DeletedRows`](recount::DeletedRows) | recounting a counter whose rows are also deleted |
//!
//! Each model can be built with one `Mistake`: a guard of the protocol that is left out. The tests
//! show that every mistake breaks a promise, so no guard is there without need.
//!
//! The tests run small cases. The program `counterfoil-model` runs large ones and prints the states
//! that it visited.

pub mod cached;
mod check;
pub mod deltas;
pub mod fence;
pub mod recount;
pub mod requests;
mod terms;

pub use check::{Checkable, Counterexample, Failure, Outcome, check, check_property};
pub use terms::{BatchId, Crash, Database, Hit, Hits, Ledger, LedgerRow, Name, Verdict};
