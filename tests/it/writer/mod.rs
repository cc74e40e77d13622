mod callers;
mod history;
mod interleavings;
mod many;
mod recorded;
mod requests;
mod values;
