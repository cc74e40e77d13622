//! The fates of single requests, chosen by their content.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// The treatment of a request by a [`Proxy`](crate::Proxy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The connection ends after so many bytes of the request, at most all of it.
    RequestLost {
        /// The number of bytes that go to the server.
        passed: usize,
    },
    /// The server executes the request. The connection ends after so many bytes of its reply.
    ReplyLost {
        /// The number of bytes that go to the client.
        passed: usize,
    },
    /// The request arrives, and once more on another connection.
    Twice {
        /// The time until the second arrival.
        after: Duration,
    },
    /// The connection ends at once, and the request arrives nevertheless.
    Late {
        /// The time until it arrives.
        after: Duration,
    },
}

/// The fates of future requests. Each has marks, and is that of the next request that contains one
/// of them.
#[derive(Default)]
pub(crate) struct Fates(Mutex<VecDeque<(Vec<Vec<u8>>, Fate)>>);

impl Fates {
    pub fn push(&self, marks: impl IntoIterator<Item = impl Into<Vec<u8>>>, fate: Fate) {
        let owned = marks.into_iter().map(Into::into).collect();
        self.0.lock().push_back((owned, fate));
    }

    pub fn clear(&self) -> usize {
        self.0.lock().drain(..).count()
    }

    /// Takes the fate of a request, if it has one.
    pub fn take(&self, request: &[u8]) -> Option<Fate> {
        let mut fates = self.0.lock();
        let is_marked =
            |(marks, _): &(Vec<Vec<u8>>, Fate)| marks.iter().any(|mark| contains(request, mark));
        let found = fates.iter().position(is_marked)?;
        fates.remove(found).map(|(_, fate)| fate)
    }
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}
