//! Redis Cluster.

mod slots;
mod view;

use std::time::Duration;

use tokio::time::timeout;

use crate::redis::{RedisOptions, RedisServer, major_version, until};
use view::{Member, View};

/// The number of hash slots in a cluster.
pub const SLOTS: u16 = 16_384;

const PRIMARIES: usize = 3;

/// A private Redis Cluster on ports of 127.0.0.1. It starts with three primaries (nodes 0 to 2) and
/// a replica of each (nodes 3 to 5). Each failover exchanges a primary and its replica.
///
/// The cluster considers a node dead after 1.5 s without a reply, and promotes its replica a second
/// later, however far the replica is behind.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    tls: bool,
}

impl RedisCluster {
    /// Starts a cluster and returns when all nodes agree that it works. `options` override the
    /// cluster's own settings, e.g. `cluster-require-full-coverage`. With
    /// [`tls_node`](RedisOptions::tls_node) the whole cluster speaks TLS, and its URLs are
    /// `rediss://`.
    ///
    /// # Panics
    ///
    /// If the cluster does not form.
    pub async fn start(options: RedisOptions) -> Self {
        let mut settings = vec![
            ("cluster-enabled", "yes"),
            ("cluster-node-timeout", "1500"),
            ("cluster-replica-validity-factor", "0"),
        ];
        if major_version() >= 7 {
            // otherwise a primary whose last slot moves away becomes a replica
            settings.push(("cluster-allow-replica-migration", "no"));
        }
        if options.takes_tls() {
            settings.push(("tls-cluster", "yes"));
        }
        let of_node = options.tcp().defaults(&settings);
        let starting: Vec<_> = (0..2 * PRIMARIES)
            .map(|_| tokio::spawn(RedisServer::start(of_node.clone())))
            .collect();
        let mut nodes = Vec::new();
        for started in starting {
            nodes.push(started.await.expect("a node starts"));
        }
        let cluster = RedisCluster {
            nodes,
            tls: of_node.takes_tls(),
        };
        cluster.form().await;
        cluster
    }

    /// Joins the unconnected nodes into a cluster.
    async fn form(&self) {
        for number in 0..self.size() {
            // each node gets an epoch of its own: otherwise they would first have to resolve a
            // conflict
            self.tell(number, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))
                .await;
            // each node meets every other one, since gossip is slow
            for other in &self.nodes[..number] {
                self.tell(number, &format!("CLUSTER MEET 127.0.0.1 {}", other.port()))
                    .await;
            }
            if number < PRIMARIES {
                let share = |number| usize::from(SLOTS) * number / PRIMARIES;
                let slots: Vec<_> = (share(number)..share(number + 1))
                    .map(|slot| slot.to_string())
                    .collect();
                self.tell(number, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")))
                    .await;
            }
        }
        until("nodes that know each other", async || {
            self.views()
                .await
                .iter()
                .all(|view| view.members.len() == self.nodes.len() && !view.is_forming)
        })
        .await;
        for primary in 0..PRIMARIES {
            let id = self.own(primary).await.id;
            self.tell(primary + PRIMARIES, &format!("CLUSTER REPLICATE {id}"))
                .await;
        }
        self.wait_until_ok().await;
    }

    /// Returns the URLs of all nodes for the redis crate's cluster client.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls { "rediss://" } else { "redis://" };
        self.nodes
            .iter()
            .map(|node| node.tcp_url().replace("redis://", scheme))
            .collect()
    }

    /// Returns the number of nodes.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node, to kill, restart, pause or resume it, or to send commands to its own
    /// address.
    pub fn node(&self, number: usize) -> &RedisServer {
        &self.nodes[number]
    }

    /// Returns the nodes that currently report that they are primaries with slots.
    pub async fn primaries(&self) -> Vec<usize> {
        let mut primaries = Vec::new();
        for number in 0..self.size() {
            if self.nodes[number].is_up() && self.is_promoted(number).await {
                primaries.push(number);
            }
        }
        primaries
    }

    /// Returns the current primary of the slot. If two nodes claim the slot, returns the one that
    /// got it last.
    ///
    /// # Panics
    ///
    /// If no node has it.
    pub async fn primary_of_slot(&self, slot: u16) -> usize {
        let mut found = None;
        for number in 0..self.size() {
            if let Some(own) = self
                .ask_own(number)
                .await
                .filter(|own| own.primary.is_none() && own.has(slot))
            {
                found = found.max(Some((own.epoch, number)));
            }
        }
        found.unwrap_or_else(|| panic!("no node has slot {slot}")).1
    }

    /// Returns the replica of that primary. The primary may be down.
    ///
    /// # Panics
    ///
    /// If the primary has no replica that is up.
    pub async fn replica_of(&self, primary: usize) -> usize {
        let port = self.nodes[primary].port();
        for number in (0..self.size()).filter(|number| *number != primary) {
            if let Some(view) = self.view(number).await {
                let own = view.own();
                let follows = |member: &&Member| Some(&member.id) == own.primary.as_ref();
                if view
                    .members
                    .iter()
                    .find(follows)
                    .is_some_and(|member| member.port == port)
                {
                    return number;
                }
            }
        }
        panic!("node {primary} has no replica that is up")
    }

    /// Promotes a replica without loss, by CLUSTER FAILOVER. Returns when it is the primary.
    ///
    /// # Panics
    ///
    /// If the replica is not promoted, for example because its primary is down.
    pub async fn failover(&self, replica: usize) {
        // the primary ignores a replica that it does not know yet
        self.wait_until_ok().await;
        for _ in 0..4 {
            self.tell(replica, "CLUSTER FAILOVER").await;
            // a replica that was not elected within five seconds gives up
            if timeout(Duration::from_secs(6), self.wait_promoted(replica))
                .await
                .is_ok()
            {
                return;
            }
        }
        self.nodes[replica].fail("a replica was not promoted");
    }

    /// Waits until a replica has been promoted, for example after its primary was killed.
    ///
    /// # Panics
    ///
    /// If the replica is not promoted.
    pub async fn wait_promoted(&self, replica: usize) {
        until("a promoted replica", async || {
            self.is_promoted(replica).await
        })
        .await;
    }

    /// Waits until all nodes that are up report a working cluster and agree on the slots and roles
    /// of all nodes, and the replicas are linked to their primaries.
    ///
    /// # Panics
    ///
    /// If that does not happen.
    pub async fn wait_until_ok(&self) {
        until("a cluster that works", async || self.is_ok().await).await;
    }

    async fn is_ok(&self) -> bool {
        let views = self.views().await;
        let agree = views
            .windows(2)
            .all(|pair| pair[0].roles() == pair[1].roles());
        if !agree {
            return false;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if !node.is_up() {
                continue;
            }
            let info = node.run::<String>("CLUSTER INFO").await;
            let works = info.is_ok_and(|info| info.contains("cluster_state:ok"));
            let has_a_role = self.is_promoted(number).await || node.is_following().await;
            if !works || !has_a_role {
                return false;
            }
        }
        true
    }

    async fn is_promoted(&self, number: usize) -> bool {
        self.ask_own(number)
            .await
            .is_some_and(|own| own.primary.is_none() && !own.slots.is_empty())
    }

    /// Returns the view of each node that replies.
    async fn views(&self) -> Vec<View> {
        let mut views = Vec::new();
        for number in 0..self.size() {
            views.extend(self.view(number).await);
        }
        views
    }

    async fn view(&self, number: usize) -> Option<View> {
        let node = &self.nodes[number];
        if node.is_up() {
            Some(View::parse(
                &node.run::<String>("CLUSTER NODES").await.ok()?,
            ))
        } else {
            None
        }
    }

    async fn ask_own(&self, number: usize) -> Option<Member> {
        self.view(number).await.map(|view| view.own().clone())
    }

    async fn own(&self, number: usize) -> Member {
        let own = self.ask_own(number).await;
        own.unwrap_or_else(|| self.nodes[number].fail(&format!("node {number} does not reply")))
    }

    /// Runs a command on a node and panics if it fails.
    async fn tell(&self, number: usize, words: &str) {
        let node = &self.nodes[number];
        let short: String = words.chars().take(80).collect();
        node.run::<()>(words)
            .await
            .unwrap_or_else(|e| node.fail(&format!("node {number}, {short}: {e}")));
    }
}
