mod batches;
mod checks;
mod database;
mod ids;
mod locks;
mod overview;
mod privileges;
mod reads;
mod rejects;
mod restore;
mod tables;
mod times;
mod values;

pub use batches::keeps_the_contract;
pub use database::{applied, batch, complete};
