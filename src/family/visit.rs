//! A visit: somebody, at something. Visits of one call are gathered by both.

/// The two as one key: how long the first is, the first, and the visitor, which may be of any bytes.
pub fn key(at: &str, visitor: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + at.len() + visitor.len());
    // ids have 255 bytes at most
    key.push(at.len() as u8);
    key.extend_from_slice(at.as_bytes());
    key.extend_from_slice(visitor);
    key
}

/// What was put together by [`key`].
pub fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.split_first() {
        Some((&length, rest)) => rest.split_at_checked(usize::from(length)).unwrap_or((rest, &[])),
        None => (&[], &[]),
    }
}
