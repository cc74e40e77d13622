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
    /// Calls carry no caller.
    Fence,
    /// A call of any epoch is executed.
    AnyEpoch,
    /// Only the callers of the current epoch are looked up.
    OneMemory,
    /// No caller is looked up.
    NoMemory,
    /// A batch is returned before its rotation is durable.
    Settle,
    /// A worker starts a batch from its first id, wherever the ledger stands.
    Position,
    /// A sequence number that was applied is a repeat, whatever its nonce.
    Nonce,
    /// A partition gets its incarnation with its first cut.
    Incarnation,
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
    /// A batch of a cached family is released without reading its rows back.
    ReadBack,
    /// A counter is deleted without a check for pending changes.
    Clean,
    /// Counters are marked as saved whatever batch the partition has.
    Unchanged,
    /// A count that moves to the buffer also stays among the open slices.
    Handover,
    /// A hit counts in the day or layer that the caller named, whatever the server's clock says.
    Outside,
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

#[cfg(feature = "test-hooks")]
pub(crate) fn is_out(guard: Guard) -> bool {
    OUT.get() == Some(guard)
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn is_out(_: Guard) -> bool {
    false
}

/// Returns the script without its part of the removed guard, if it contains one.
#[cfg(feature = "test-hooks")]
pub(crate) fn patched(name: &str, source: &str) -> Option<String> {
    let (without, with) = patch(OUT.get()?, name)?;
    // a patch that removes nothing would prove nothing
    (source.matches(without).count() == 1).then(|| source.replace(without, with))
}

/// Returns the text to replace, and its replacement.
#[cfg(feature = "test-hooks")]
fn patch(guard: Guard, name: &str) -> Option<(&'static str, &'static str)> {
    Some(match (guard, name) {
        (Guard::AnyEpoch, _) => (
            "and epoch ~= now and epoch ~= redis.call('HGET', KEYS[1], '=before') then return",
            "and false then return",
        ),
        (Guard::OneMemory, _) => (
            " or epoch ~= now and redis.call('HGET', KEYS[2], caller)",
            "",
        ),
        (Guard::NoMemory, _) => ("local last_n = last and (", "local last_n = false and ("),
        (Guard::Ticket, "cached_seed") => (
            "if row == 'ticket ' .. ticket then",
            "if row and row:find('^ticket') then",
        ),
        (Guard::Clean, "cached_delete") => ("if waits[i + 1] then", "if false then"),
        (Guard::Unchanged, "cached_saved") => {
            ("if cut == 0 or not is_current then", "if cut == 0 then")
        }
        (Guard::Release, "buffered_release") => (" and state[3] == ARGV[3]", ""),
        (Guard::Reset, "buffered_reset") => ("if not is_same then return", "if false then return"),
        (Guard::EndOfEpochs, "buffered_reset") => (
            "redis.call('HDEL', calls, '=now', '=before', '=began_at')",
            "",
        ),
        (Guard::Incarnation, "family_configure") => ("for i = 2, #KEYS do", "for i = 2, 1 do"),
        (Guard::Incarnation, "buffered_add" | "visitors_first") => (
            "call('HSETNX', meta, 'incarnation'",
            "tostring('incarnation'",
        ),
        (Guard::Incarnation, "cached_incr") => ("call('HSETNX', meta, 'incarnation', name)", ""),
        (Guard::Handover, "series_close") => ("redis.call('HDEL', open, id)", ""),
        (Guard::Outside, "series_add") => (
            "if not (ms >= start * 1000 and ms < over * 1000) then return",
            "if false then return",
        ),
        (Guard::Outside, "activity_touch_hll") => (
            "if math.floor(now_ms / layer_ms) ~= layer then",
            "if false then",
        ),
        (Guard::Trim, "series_add") => (
            "oldest = start - slices * length",
            "oldest = start - (slices - 1) * length",
        ),
        (Guard::Ahead, "series_add") => (
            "or math.huge) <= to.oldest then",
            "or math.huge) <= to.oldest or tonumber(start) * 1000 > ms then",
        ),
        (Guard::Expiry, "series_add") => (
            "(start + (slices + 1) * length) * 1000",
            "(start + length) * 1000",
        ),
        (Guard::Trim, "activity_touch" | "activity_touch_hll") => {
            ("or layer) <= gone then", "or layer) <= gone + 1 then")
        }
        (Guard::Expiry, "activity_touch") => (
            "* layer_ms, (layers + 1) * layer_ms",
            "* layer_ms, layer_ms",
        ),
        (Guard::Expiry, "activity_touch_hll") => (
            "ttl, gone, minute = (layers + 1) * layer_ms,",
            "ttl, gone, minute = layer_ms,",
        ),
        _ => return None,
    })
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn patched(_: &str, _: &str) -> Option<String> {
    None
}

#[cfg(all(test, feature = "test-hooks"))]
mod tests {
    use super::*;
    use crate::scripts::bundle::Script;

    #[test]
    fn what_is_taken_out_of_a_script_is_there_once() {
        for (guard, name) in [
            (Guard::AnyEpoch, "buffered_add"),
            (Guard::OneMemory, "buffered_add"),
            (Guard::NoMemory, "buffered_add"),
            (Guard::AnyEpoch, "cached_incr"),
            (Guard::OneMemory, "cached_incr"),
            (Guard::NoMemory, "cached_incr"),
            (Guard::Ticket, "cached_seed"),
            (Guard::Clean, "cached_delete"),
            (Guard::Release, "buffered_release"),
            (Guard::Reset, "buffered_reset"),
            (Guard::EndOfEpochs, "buffered_reset"),
            (Guard::Incarnation, "family_configure"),
            (Guard::Incarnation, "buffered_add"),
            (Guard::Incarnation, "cached_incr"),
            (Guard::Unchanged, "cached_saved"),
            (Guard::Handover, "series_close"),
            (Guard::Outside, "series_add"),
            (Guard::Outside, "activity_touch_hll"),
            (Guard::Trim, "series_add"),
            (Guard::Ahead, "series_add"),
            (Guard::Expiry, "series_add"),
            (Guard::Trim, "activity_touch"),
            (Guard::Trim, "activity_touch_hll"),
            (Guard::Expiry, "activity_touch"),
            (Guard::Expiry, "activity_touch_hll"),
        ] {
            take_out(Some(guard));
            let script = Script::named(name).expect("a script of the bundle");
            assert!(
                patched(name, script.source).is_some(),
                "{guard:?} in {name}"
            );
        }
        take_out(None);
    }
}
