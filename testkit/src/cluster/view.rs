//! One node's view of the cluster: the reply of CLUSTER NODES.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// All nodes, as one of them sees them.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub members: Vec<Member>,
    /// Some nodes have not shaken hands yet.
    pub is_forming: bool,
}

/// A node, as one of the nodes sees it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub id: String,
    pub port: u16,
    /// The id of its primary, if it is a replica.
    pub primary: Option<String>,
    pub epoch: u64,
    pub slots: Vec<RangeInclusive<u16>>,
    is_own: bool,
}

impl View {
    pub fn parse(text: &str) -> Self {
        View {
            members: text.lines().filter_map(Member::parse).collect(),
            is_forming: text.lines().any(|line| line.contains("handshake")),
        }
    }

    /// Returns the node whose view this is.
    pub fn own(&self) -> &Member {
        self.members
            .iter()
            .find(|member| member.is_own)
            .expect("a node knows itself")
    }

    /// Returns the primary and the slots of each node.
    pub fn roles(&self) -> BTreeMap<&str, (Option<&str>, &[RangeInclusive<u16>])> {
        self.members
            .iter()
            .map(|member| (&*member.id, (member.primary.as_deref(), &*member.slots)))
            .collect()
    }
}

impl Member {
    /// Parses `ID IP:PORT@BUS[,HOST] FLAG,... PRIMARY|- PING PONG EPOCH LINK
    /// [SLOT|SLOT-SLOT|[SLOT->-ID] ...]`.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let (address, bus) = words.get(1)?.split_once('@')?;
        let (_, port) = address.rsplit_once(':')?;
        let bus: u16 = bus.split(',').next()?.parse().ok()?;
        Some(Member {
            id: words[0].to_owned(),
            // newer servers report port 0 for a node with TLS only. The port of its bus is always
            // 10,000 above its own
            port: port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .or(bus.checked_sub(10_000))?,
            is_own: words.get(2)?.split(',').any(|flag| flag == "myself"),
            primary: words
                .get(3)
                .filter(|id| **id != "-")
                .map(|id| (*id).to_owned()),
            epoch: words.get(6)?.parse().ok()?,
            // skips slots in migration, which are in brackets
            slots: words
                .iter()
                .skip(8)
                .filter_map(|word| slots(word))
                .collect(),
        })
    }

    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// Parses `SLOT` or `SLOT-SLOT`.
fn slots(word: &str) -> Option<RangeInclusive<u16>> {
    let (from, to) = word.split_once('-').unwrap_or((word, word));
    Some(from.parse().ok()?..=to.parse().ok()?)
}
