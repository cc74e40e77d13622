//! Redis behind a network, or a Redis Cluster, and their crashes.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use testkit::{Dump, Proxy, RedisCluster, RedisServer};
use tokio::time::sleep;

use super::journal::{Ms, now};
use super::persistence::Persistence;
use crate::Result;
use crate::zipf::Random;

/// The most that a crash reverts, in ms: less than the settle time.
const REVERTED: u64 = 2_000;
/// The longest time that a write takes to a replica that works, in ms.
const REPLICATED: u64 = 200;
/// The pause after each key of a slot that moves.
const MOVED_KEY_EVERY: Duration = Duration::from_millis(5);

/// The servers.
pub enum Redis {
    Standalone(Box<Standalone>),
    Cluster(RedisCluster),
}

/// A primary, its replica if it has one, and the network in front of them.
pub struct Standalone {
    persistence: Persistence,
    server: RedisServer,
    replica: Option<RedisServer>,
    proxy: Proxy,
}

impl Redis {
    pub async fn start(persistence: Persistence) -> Self {
        if persistence == Persistence::Cluster {
            return Redis::Cluster(RedisCluster::start(persistence.options()).await);
        }
        let server = start(persistence).await;
        let proxy = Proxy::to(&server);
        let mut redis = Standalone {
            persistence,
            server,
            replica: None,
            proxy,
        };
        if persistence == Persistence::Replica {
            redis.start_replica().await;
        }
        Redis::Standalone(Box::new(redis))
    }

    /// Returns the URL, or those of all nodes.
    pub fn urls(&self) -> String {
        match self {
            Redis::Standalone(redis) => redis.proxy.url(),
            Redis::Cluster(cluster) => cluster.urls().join(","),
        }
    }

    /// Returns a directory that is removed at the end.
    pub fn directory(&self) -> PathBuf {
        let socket = match self {
            Redis::Standalone(redis) => redis.proxy.socket(),
            Redis::Cluster(cluster) => cluster.node(0).socket(),
        };
        let parent = socket.parent();
        parent.map_or_else(std::env::temp_dir, PathBuf::from)
    }

    /// Returns the server, unless it is a cluster.
    pub fn standalone(&self) -> Option<&RedisServer> {
        match self {
            Redis::Standalone(redis) => Some(&redis.server),
            Redis::Cluster(_) => None,
        }
    }

    /// Returns the server that has the key.
    pub async fn server_of(&self, key: &str) -> Result<&RedisServer> {
        match self {
            Redis::Standalone(redis) => Ok(&redis.server),
            Redis::Cluster(cluster) => {
                let slot = cluster
                    .node(0)
                    .run(&format!("CLUSTER KEYSLOT {key}"))
                    .await?;
                Ok(cluster.node(cluster.primary_of_slot(slot).await))
            }
        }
    }

    /// Moves the slot of a key of a cluster to another primary, key by key.
    pub async fn move_slot(&self, key: &str, random: &mut Random) -> Result<()> {
        let Redis::Cluster(cluster) = self else {
            return Ok(());
        };
        let slot: u16 = cluster
            .node(0)
            .run(&format!("CLUSTER KEYSLOT {key}"))
            .await?;
        let to = any_primary(cluster, random).await;
        cluster.move_slots(slot..=slot, to, MOVED_KEY_EVERY).await;
        Ok(())
    }

    /// Returns the keys of pending hits, each with the socket of its server.
    pub async fn pending(&self) -> Result<Vec<String>> {
        let servers = match self {
            Redis::Standalone(redis) => vec![&redis.server],
            Redis::Cluster(cluster) => {
                let primaries = cluster.primaries().await.into_iter();
                primaries.map(|number| cluster.node(number)).collect()
            }
        };
        let mut pending = Vec::new();
        for server in servers {
            for name in ["buffer", "batch"] {
                let keys: Vec<String> = server.run(&format!("KEYS cf1:*:{name}")).await?;
                for key in keys {
                    // a promoted replica may still have keys of a slot that moved
                    if self.server_of(&key).await?.socket() == server.socket() {
                        pending.push(format!("{key} at {}", server.socket().display()));
                    }
                }
            }
        }
        Ok(pending)
    }

    /// Returns the network, which a cluster does not have.
    pub fn proxy(&self) -> Option<&Proxy> {
        match self {
            Redis::Standalone(redis) => Some(&redis.proxy),
            Redis::Cluster(_) => None,
        }
    }

    /// Returns the primary, or any of a cluster.
    pub async fn primary(&self, random: &mut Random) -> &RedisServer {
        match self {
            Redis::Standalone(redis) => &redis.server,
            Redis::Cluster(cluster) => cluster.node(any_primary(cluster, random).await),
        }
    }

    /// Promotes a replica of a cluster without loss.
    pub async fn hand_over(&self, random: &mut Random) {
        if let Redis::Cluster(cluster) = self {
            let primary = any_primary(cluster, random).await;
            cluster.failover(cluster.replica_of(primary).await).await;
        }
    }

    /// Starts another server from a dump of a standalone one.
    pub async fn start_from(&self, dump: &Dump) -> Result<RedisServer> {
        let Redis::Standalone(redis) = self else {
            return Err("a cluster has no dump".into());
        };
        let server = RedisServer::start(redis.persistence.options().tcp()).await;
        server.restore(dump).await;
        Ok(server)
    }

    /// Crashes a primary, and starts it again or promotes its replica.
    pub async fn crash(&mut self, random: &mut Random) -> Result<Loss> {
        let revert = Duration::from_millis(random.below(REVERTED));
        match self {
            Redis::Standalone(redis) if redis.replica.is_some() => redis.fail_over(revert).await,
            Redis::Standalone(redis) => Ok(redis.crash(revert).await),
            Redis::Cluster(cluster) => {
                let primary = any_primary(cluster, random).await;
                let replica = cluster.replica_of(primary).await;
                let lost = kill_ahead(cluster.node(primary), cluster.node(replica), revert).await?;
                cluster.wait_promoted(replica).await;
                cluster.node(primary).start_again().await;
                cluster.wait_until_ok().await;
                Ok(Loss::Of(lost))
            }
        }
    }
}

/// The hits that a crash may lose.
pub enum Loss {
    Nothing,
    /// Those that were counted in this time.
    Of(RangeInclusive<Ms>),
    /// Those that MySQL did not have yet at this time.
    Pending {
        crashed: Ms,
        is_restarted: bool,
    },
}

impl Standalone {
    async fn start_replica(&mut self) {
        let replica = RedisServer::start(self.persistence.options()).await;
        replica.replica_of(&self.server).await;
        self.replica = Some(replica);
    }

    /// Has the replica take over without the last writes.
    async fn fail_over(&mut self, lag: Duration) -> Result<Loss> {
        let replica = self.replica.take().ok_or("there is no replica")?;
        let lost = kill_ahead(&self.server, &replica, lag).await?;
        replica.run::<()>("REPLICAOF NO ONE").await?;
        self.proxy.redirect(&replica);
        self.server = replica;
        self.start_replica().await;
        Ok(Loss::Of(lost))
    }

    async fn crash(&mut self, revert: Duration) -> Loss {
        let start = now();
        if self.persistence == Persistence::Everysec {
            let length = self.server.aof_len();
            sleep(revert).await;
            self.server.kill();
            self.server.cut_aof(length);
        } else {
            self.server.kill();
        }
        let killed = now();
        self.server.start_again().await;
        match self.persistence {
            Persistence::Always => Loss::Nothing,
            Persistence::Everysec => Loss::Of(start..=killed),
            _ => Loss::Pending {
                crashed: killed,
                is_restarted: true,
            },
        }
    }
}

/// Kills a primary ahead of its replica. Returns the time whose hits the replica may lack.
async fn kill_ahead(
    primary: &RedisServer,
    replica: &RedisServer,
    lag: Duration,
) -> Result<RangeInclusive<Ms>> {
    let start = now();
    replica.pause();
    primary.run::<()>("CLIENT KILL TYPE replica").await?;
    sleep(lag).await;
    primary.kill();
    let killed = now();
    replica.resume();
    Ok(start - REPLICATED..=killed)
}

/// Starts a server whose clock can step or whose disk can be full, as far as this machine allows it.
async fn start(persistence: Persistence) -> RedisServer {
    let options = persistence.options();
    if persistence == Persistence::Everysec
        && let Ok(server) = RedisServer::start_with_disk(options.clone()).await
    {
        return server;
    }
    let with_clock = persistence.may_step().then(|| options.clone().clock());
    RedisServer::start(
        with_clock
            .and_then(std::result::Result::ok)
            .unwrap_or(options),
    )
    .await
}

async fn any_primary(cluster: &RedisCluster, random: &mut Random) -> usize {
    // a pause may have promoted a replica
    cluster.wait_until_ok().await;
    let primaries = cluster.primaries().await;
    primaries[random.below(primaries.len() as u64) as usize]
}
