//! The faults of the network.

use std::time::Duration;

use testkit::{Fate, Proxy};

use super::super::fault::Fault;
use super::{LATE, pause};
use crate::zipf::Random;

/// A cut happens within this many bytes.
const CUT: u64 = 3_000;

/// Has the network disturb one of the next calls, or all for a while.
pub(super) async fn strike_network(proxy: &Proxy, fault: Fault, random: &mut Random) {
    let (cut, after) = (
        random.below(CUT) as usize,
        Duration::from_millis(random.below(LATE)),
    );
    let calls = ["EVALSHA", "HINCRBY", "INCR", "LPUSH"];
    match fault {
        Fault::ConnectionCutInARequest | Fault::MysqlConnectionCutInARequest => {
            proxy.cut_requests_after(cut)
        }
        Fault::ConnectionCutInAReply | Fault::MysqlConnectionCutInAReply => {
            proxy.cut_replies_after(cut)
        }
        Fault::CallLate => proxy.disturb(calls, Fate::Late { after }),
        Fault::CallTwice => proxy.disturb(calls, Fate::Twice { after }),
        _ => {
            proxy.delay_replies(after);
            pause(random).await;
            proxy.delay_replies(Duration::ZERO);
        }
    }
}
