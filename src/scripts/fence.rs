//! The fence by epochs (docs/protocol.md, section 3.2), which makes a call safe to repeat from any
//! process.

use std::sync::Arc;

use crate::error::Result;
use crate::scripts::bundle::{Arg, borrowed, owned};
use crate::scripts::keys::{Key, Keys};
use crate::scripts::random::{random, random_name};
use crate::testing::ablation::{self, Guard};
use crate::testing::resumed;

/// The longest step from a caller's number to its next.
const LONGEST_STEP: u64 = 1 << 20;

/// The last number that another one may follow. Scripts take numbers up to 2^53.
const LAST: u64 = (1 << 53) - LONGEST_STEP;

/// The idempotency key of a call, and the partition that remembers it.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// The partition that remembers the caller, on the node that executes the call.
    pub home: &'a Keys,
    /// The caller's random name. A caller has one call in flight.
    pub caller: &'a str,
    /// The call's number, higher than that of the caller's last one.
    pub n: u64,
    /// The epoch that the call names, as Redis returned it.
    pub epoch: &'a str,
}

impl<'a> Fence<'a> {
    /// Returns the leading keys and arguments of every counting script.
    pub(crate) fn begin(&self, now: Arg<'a>) -> (Vec<Key>, Vec<Arg<'a>>) {
        let caller = if ablation::is_out(Guard::Fence) {
            ""
        } else {
            self.caller
        };
        let args = [borrowed(caller), owned(self.n), borrowed(self.epoch), now];
        (self.home.fence().into(), args.into())
    }
}

/// An idempotent producer: Redis executes each of its calls once, however often it arrives.
#[derive(Clone, Debug)]
pub struct Caller {
    pub name: Arc<str>,
    /// The number of the caller's last call.
    pub n: u64,
}

/// The callers of a writer that have no call in flight.
///
/// Two copies of a process have the same names, and with equal numbers Redis would take the calls
/// of one for repeats of the other's. So a writer begins with new names in a new process, which a
/// fork makes, and a caller's numbers grow by random steps of the operating system, which differ in
/// machines that were resumed from one snapshot.
#[derive(Debug, Default)]
pub struct Callers {
    idle: Vec<Caller>,
    /// The process that drew the names.
    process: u32,
}

impl Callers {
    /// Returns a caller with the number of its next call.
    pub fn take(&mut self) -> Result<Caller> {
        let process = std::process::id();
        if process != self.process {
            let resumed = resumed::caller().map(Arc::from);
            let idle = Vec::from_iter(resumed.map(|name| Caller { name, n: 0 }));
            *self = Callers { idle, process };
        }
        let mut caller = match self.idle.pop() {
            Some(caller) => caller,
            None => Caller {
                name: random_name()?.into(),
                n: 0,
            },
        };
        caller.n += if ablation::is_out(Guard::Step) {
            1
        } else {
            1 + random()? % LONGEST_STEP
        };
        Ok(caller)
    }

    /// Takes back a caller whose call was counted, for the next one.
    pub fn give_back(&mut self, caller: Caller) {
        if caller.n <= LAST {
            self.idle.push(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_draws_new_names() {
        let mut callers = Callers::default();
        let own = callers.take().unwrap();
        callers.give_back(own.clone());
        let next = callers.take().unwrap();
        assert!(next.name == own.name && next.n > own.n);
        callers.give_back(next);
        // as if another process had drawn them
        callers.process += 1;
        assert_ne!(callers.take().unwrap().name, own.name);
    }
}
