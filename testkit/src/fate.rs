//! The fates of single requests, chosen by their content.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

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
    /// The request arrives, and those of its calls that are chosen once more on another connection.
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

/// Decides whether a call is the one in question.
type IsChosen = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The fates of future requests, each that of the next request with a call that suits it.
#[derive(Default)]
pub(crate) struct Fates {
    queue: Mutex<VecDeque<(IsChosen, Fate)>>,
    awaited: Mutex<Vec<(IsChosen, oneshot::Sender<()>)>>,
}

impl Fates {
    pub fn push(&self, is_fated: impl Fn(&[u8]) -> bool + Send + 'static, fate: Fate) {
        self.queue.lock().push_back((Box::new(is_fated), fate));
    }

    /// Returns what tells that the next request with such a call has arrived.
    pub fn await_call(
        &self,
        is_awaited: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> oneshot::Receiver<()> {
        let (arrived, arrives) = oneshot::channel();
        self.awaited.lock().push((Box::new(is_awaited), arrived));
        arrives
    }

    pub fn clear(&self) -> usize {
        self.queue.lock().drain(..).count()
    }

    /// Takes the fate of a request, if it has one, and the calls that it is of.
    pub fn take(&self, request: &[u8]) -> Option<(Fate, Vec<u8>)> {
        let (mut fates, mut awaited) = (self.queue.lock(), self.awaited.lock());
        if fates.is_empty() && awaited.is_empty() {
            return None;
        }
        let calls = calls(request);
        let is_awaited =
            |(is_awaited, _): &mut (IsChosen, _)| calls.iter().any(|call| is_awaited(call));
        for (_, arrived) in awaited.extract_if(.., is_awaited) {
            // an error means that nobody waits any more
            let _ = arrived.send(());
        }
        let suits = |(is_fated, _): &(IsChosen, Fate)| calls.iter().any(|call| is_fated(call));
        let found = fates.iter().position(suits)?;
        let (is_fated, fate) = fates.remove(found)?;
        let chosen = calls.into_iter().filter(|call| is_fated(call));
        Some((fate, chosen.collect::<Vec<_>>().concat()))
    }
}

/// Splits a pipeline of calls in RESP. What is not a whole call is the last part.
fn calls(mut request: &[u8]) -> Vec<&[u8]> {
    let mut calls = Vec::new();
    while let Some(length) = call_length(request).filter(|length| *length <= request.len()) {
        let (call, rest) = request.split_at(length);
        calls.push(call);
        request = rest;
    }
    if !request.is_empty() {
        calls.push(request);
    }
    calls
}

/// Returns the length of the first call: an array of strings.
fn call_length(request: &[u8]) -> Option<usize> {
    let (parts, mut length) = header(request, b'*')?;
    for _ in 0..parts {
        let (bytes, header) = header(request.get(length..)?, b'$')?;
        length += header + bytes + 2;
    }
    Some(length)
}

/// Returns the number in a line that begins with this byte, and the length of the line.
fn header(bytes: &[u8], first: u8) -> Option<(usize, usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let digits = bytes.get(..end)?.strip_prefix(&[first])?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, end + 2))
}

/// Returns whether a request or call contains the mark.
pub fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}
