//! Switches that remove one guard of the protocol, so that tests can show that each is needed. They
//! exist only with the feature `test-hooks`, and apply to the calling thread, so that tests can run
//! in parallel.

/// A guard of docs/protocol.md, sections 3 to 5. Each variant describes the behaviour without its
/// guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "test-hooks"),
    expect(dead_code, reason = "no guard is ever out")
)]
pub enum Guard {
    /// The database adds a batch without checking the ledger.
    Ledger,
    /// A batch is added under its family's number, whatever family the database has under it.
    Registration,
    /// Calls carry no caller.
    Fence,
    /// A caller's numbers grow by one.
    Step,
    /// A call of any epoch is executed.
    AnyEpoch,
    /// Only the callers of the current epoch are looked up.
    OneMemory,
    /// No caller is looked up.
    NoMemory,
    /// A request of any generation is executed.
    AnyGeneration,
    /// Only the requests of the current generation are looked up.
    OneGeneration,
    /// A partition is reset and its home's generations continue.
    EndOfGenerations,
    /// A partition is reset and its home's requests stay as they were decided.
    Tag,
    /// A process with another database counts in the family, and takes its batches.
    Database,
    /// A batch is returned before its rotation is durable.
    Settle,
    /// A worker starts a batch from its first id, wherever the ledger stands.
    Position,
    /// A sequence number that was applied is a repeat, whatever its nonce.
    Nonce,
    /// A partition gets its incarnation with its first cut.
    Incarnation,
    /// A batch does not report that the ledger is behind the one before it.
    LostBatch,
    /// A batch is released although the ledger proves that Redis was set back.
    SetBack,
    /// A partition is reset whatever state it is in.
    Reset,
    /// A partition is reset and its home's epochs continue.
    EndOfEpochs,
    /// A release checks the sequence number only.
    Release,
    /// A reader does not compare its batch with the ledger.
    Comparison,
    /// A counter is seeded with any value that was read, at any time.
    Ticket,
    /// A bound refuses a change although the row may have changed.
    OldRow,
    /// A batch of a cached family is released without reading its rows back.
    ReadBack,
    /// A counter is deleted without a check for pending changes.
    Clean,
    /// Counters are marked as saved whatever batch the partition has.
    Unchanged,
    /// A list of days or months replaces the one in Redis, also what has begun.
    Begun,
    /// A window drops a slice or layer that is still part of it.
    Trim,
    /// A window drops the slices that lie ahead of a clock that stepped back.
    Ahead,
    /// A window expires with its last slice.
    Expiry,
    /// A correction does not check whether its run continues, or whether that run has already
    /// corrected the counter.
    RecountRun,
    /// A recount corrects by one difference.
    RecountBounds,
    /// A recount takes a counter with an equal value for one that did not move.
    RecountMoved,
    /// A recount corrects counters with rejects that may still be applied.
    RecountRejects,
}

#[cfg(feature = "test-hooks")]
thread_local! {
    static OUT: std::cell::Cell<Option<Guard>> = const { std::cell::Cell::new(None) };
}

/// Removes the guard for this thread; `None` restores it.
#[cfg(feature = "test-hooks")]
pub fn take_out(guard: Option<Guard>) {
    OUT.set(guard);
}

/// Returns the guard that this thread has removed.
#[cfg(feature = "test-hooks")]
pub(crate) fn out() -> Option<Guard> {
    OUT.get()
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn out() -> Option<Guard> {
    None
}

pub(crate) fn is_out(guard: Guard) -> bool {
    out() == Some(guard)
}

/// Returns the script without the lines of the removed guard, if it has any. They end with
/// `-- guard: NAME`, and each is a statement that can be left out.
#[cfg(feature = "test-hooks")]
pub(crate) fn without_guard(source: &str) -> Option<String> {
    let mark = format!("-- guard: {:?}", OUT.get()?);
    if !source.contains(&mark) {
        return None;
    }
    let is_guard = |line: &&str| {
        line.split_once(&mark)
            .is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(','))
    };
    let kept: Vec<_> = source.lines().filter(|line| !is_guard(line)).collect();
    (kept.len() < source.lines().count()).then(|| kept.join("\n"))
}
