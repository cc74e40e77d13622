//! A visit: a visitor of a page, or of a scope and day. A call groups its visits by both.

/// Returns both as one key: the length of the first, the first, and the visitor, which may be any
/// bytes.
pub fn key(at: &str, visitor: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + at.len() + visitor.len());
    // ids have at most 255 bytes
    key.push(at.len() as u8);
    key.extend_from_slice(at.as_bytes());
    key.extend_from_slice(visitor);
    key
}

/// Returns the parts of a [`key`].
pub fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.split_first() {
        Some((&length, rest)) => rest
            .split_at_checked(usize::from(length))
            .unwrap_or((rest, &[])),
        None => (&[], &[]),
    }
}
