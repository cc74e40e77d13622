mod buffered;
mod cached;
mod keys;
