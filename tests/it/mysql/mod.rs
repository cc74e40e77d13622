mod buffered;
mod cached;
