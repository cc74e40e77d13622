mod buffered;
mod cached;
mod keys;
mod privileges;
mod rejects;
