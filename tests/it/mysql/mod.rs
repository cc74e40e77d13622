pub mod buffered;
mod cached;
mod keys;
mod overview;
mod privileges;
mod rejects;
