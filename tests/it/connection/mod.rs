mod cluster;
mod connect;
mod copies;
mod cuts;
mod eviction;
mod network;
mod no_nodes;
mod outage;
mod permissions;
mod pools;
mod runtimes;
mod tls;

use redis::cluster::{ClusterClient, ClusterClientBuilder};

use crate::support::*;

/// Returns the client that counterfoil recommends for the cluster.
fn builder(cluster: &RedisCluster) -> ClusterClientBuilder {
    counterfoil::cluster_settings(ClusterClient::builder(cluster.urls()))
}

async fn connect(builder: ClusterClientBuilder) -> Cluster {
    Cluster::connect(builder.build().unwrap()).await.unwrap()
}

/// A cluster, and a separate database.
struct Clustered {
    cluster: RedisCluster,
    pool: MySqlPool,
    counterfoil: Counterfoil,
}

impl Clustered {
    async fn start(options: RedisOptions) -> Self {
        let (cluster, pool) = tokio::join!(RedisCluster::start(options), database());
        let redis = connect(builder(&cluster)).await;
        Clustered {
            counterfoil: Counterfoil::new(redis, MysqlStore::new(&pool).unwrap()),
            cluster,
            pool,
        }
    }

    /// Returns a client of another process, with this database and another connection.
    fn over(&self, redis: impl Into<Connection>) -> Counterfoil {
        Counterfoil::new(redis, MysqlStore::new(&self.pool).unwrap())
    }

    async fn open<H: FamilyHandle>(&self, family: FamilyBuilder<H>) -> H {
        self.counterfoil.opened(family).await
    }

    async fn drain(&self) {
        timeout(secs(30), self.counterfoil.drain())
            .await
            .unwrap()
            .unwrap();
    }

    /// Returns the sum of the values whose ids match the pattern.
    async fn stored(&self, ids: &str) -> i64 {
        let sum = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values \
             WHERE id LIKE ?";
        sqlx::query_scalar(sum)
            .bind(ids)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}
