//! What any connection to Redis does.

pub mod backoff;
pub mod link;
pub mod primary;
pub mod refusal;
pub mod topology;
