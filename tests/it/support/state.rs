//! The state of a family in Redis, to which it can be set back.

use redis::aio::ConnectionLike;

use crate::support::*;

/// The keys of a family with their contents.
pub struct State {
    pattern: String,
    keys: Vec<(String, Vec<u8>)>,
}

impl State {
    /// Reads the current state.
    pub async fn of<C: ConnectionLike + Clone>(redis: &C, family: &Family) -> Self {
        let (mut redis, pattern) = (redis.clone(), format!("cf1:{{{family}/*"));
        let keys: Vec<String> = cmd("KEYS")
            .arg(&pattern)
            .query_async(&mut redis)
            .await
            .unwrap();
        let mut dumps = pipe();
        for key in &keys {
            dumps.cmd("DUMP").arg(key);
        }
        let contents: Vec<Vec<u8>> = if keys.is_empty() {
            vec![]
        } else {
            dumps.query_async(&mut redis).await.unwrap()
        };
        State {
            pattern,
            keys: keys.into_iter().zip(contents).collect(),
        }
    }

    /// Sets Redis back to this state.
    pub async fn restore<C: ConnectionLike + Clone>(&self, redis: &C) {
        let mut redis = redis.clone();
        let present: Vec<String> = cmd("KEYS")
            .arg(&self.pattern)
            .query_async(&mut redis)
            .await
            .unwrap();
        let mut restores = pipe();
        restores.atomic();
        for key in present {
            restores.del(key).ignore();
        }
        for (key, content) in &self.keys {
            restores
                .cmd("RESTORE")
                .arg(key)
                .arg(0)
                .arg(content)
                .ignore();
        }
        let () = restores.query_async(&mut redis).await.unwrap();
    }
}
