//! The exact value as lua/README.md describes it for clients in other languages: the statement, and
//! the comparison of its rows with what Redis has pending.

use counterfoil::test_hooks::{Partition, Pending};

use crate::vectors::lua;

use crate::support::*;

const IDS: [&str; 3] = ["a", "b", "c"];

/// A client of one partition, with the statement of lua/README.md.
struct Reader {
    pair: Pair,
    family: Arc<Registered>,
    partition: Partition,
    statement: String,
}

impl Reader {
    async fn add(&self, delta: i64) {
        let (partition, pairs) = (&self.partition, IDS.map(|id| (id, delta)));
        let added = partition.add(&self.family.family, partition.unfenced(), 1000, pairs);
        added.await.unwrap();
    }

    async fn pending(&self) -> Pending {
        self.partition.read(&IDS).await.unwrap()
    }

    /// Returns the exact values by the table of lua/README.md, or the reason why there are none.
    async fn values(&self, pending: &Pending) -> Result<Vec<i128>, &'static str> {
        let (last, mut values) = (pending.last, vec![]);
        let seq = last.seq.cast_signed();
        for (id, &(batch, buffer)) in IDS.iter().zip(&pending.deltas) {
            let row = sqlx::query(AssertSqlSafe(self.statement.clone()))
                .bind(*id)
                .bind(0)
                .bind(last.incarnation.map_or(0, |incarnation| incarnation.0))
                .bind("shop")
                .bind("views")
                .fetch_one(&self.pair.pool)
                .await
                .unwrap();
            let (value, a): (i64, i64) = (row.get("value"), row.get("a"));
            let (nonce, position): (Option<u64>, Option<Vec<u8>>) =
                (row.get("nonce"), row.get("position"));
            let [value, batch, buffer] = [value, batch, buffer].map(i128::from);
            values.push(match position {
                _ if a > seq => return Err("again"),
                _ if a == seq && a != 0 && nonce != last.nonce.map(|nonce| nonce.0) => {
                    return Err("set back");
                }
                None if a == seq => value + buffer,
                Some(position)
                    if a == seq && pending.in_flight && id.as_bytes() <= &position[..] =>
                {
                    value + buffer
                }
                Some(_) if a == seq && pending.in_flight => value + batch + buffer,
                None if a == seq - 1 && pending.in_flight => value + batch + buffer,
                _ => return Err("behind"),
            });
        }
        Ok(values)
    }

    async fn expect(&self, sum: i128) -> Pending {
        let pending = self.pending().await;
        let values = self.values(&pending).await;
        assert_eq!(values, Ok(vec![sum; IDS.len()]), "{pending:?}");
        pending
    }

    async fn cut(&self, delta: i64) -> Arc<Batch> {
        let rotated = self
            .partition
            .rotate(&self.family.family, "", None, Cut::Now);
        let RotateReply::Batch(cut) = rotated.await.unwrap() else {
            panic!("nothing to cut")
        };
        Arc::new(Batch {
            family: self.family.clone(),
            partition: 0,
            id: cut.id,
            deltas: IDS.map(|id| (id.into(), delta)).into(),
        })
    }

    async fn release(&self, batch: &Batch) {
        assert!(self.partition.release(batch.id).await.unwrap());
    }

    async fn apply(&self, batch: &Arc<Batch>, max_rows: Option<u64>) -> Progress {
        let batches = std::slice::from_ref(batch);
        let applied = self.pair.mysql().apply(batches, max_rows).await;
        applied.unwrap().progress[0]
    }
}

#[tokio::test]
async fn the_documented_statement_reads_the_exact_value_at_every_moment() {
    let pair = Pair::new().await;
    let family = Family::buffered("shop", "views").partitions(1);
    let family = pair.mysql().register(&family.build().unwrap()).await;
    let family = Arc::new(family.unwrap());
    let partition = Partition::new(pair.redis.manager().await, &family.family, 0);
    epoch(&partition, &family.family).await.unwrap();

    let readme = fs::read_to_string(lua().join("README.md")).unwrap();
    let statement = readme.split("```sql\n").nth(1).unwrap();
    let mut statement = statement.split("```").next().unwrap().to_owned();
    for name in [":id", ":partition", ":incarnation", ":namespace", ":name"] {
        statement = statement.replacen(name, "?", 1);
    }
    let statement = format!(
        "SELECT value, CAST(a AS SIGNED) AS a, nonce, position FROM ({statement}) AS readme"
    );
    let reader = Reader {
        pair,
        family,
        partition,
        statement,
    };

    reader.expect(0).await;
    reader.add(5).await;
    let before = reader.expect(5).await;
    let batch = reader.cut(5).await;
    reader.add(2).await;
    let cut = reader.expect(7).await;
    for progress in [
        Progress::Partial { left: 2 },
        Progress::Partial { left: 1 },
        Progress::Complete,
    ] {
        assert_eq!(reader.apply(&batch, Some(1)).await, progress);
        reader.expect(7).await;
    }
    reader.release(&batch).await;
    reader.expect(7).await;

    let batch = reader.cut(2).await;
    let newer = reader.expect(7).await;
    reader.apply(&batch, None).await;
    reader.expect(7).await;
    for stale in [&before, &cut] {
        assert_eq!(reader.values(stale).await, Err("again"));
    }
    // sets Redis back to before the second cut, and cuts again
    reader.release(&batch).await;
    let nonce = cut.last.nonce.unwrap();
    let before = format!("HSET cf1:{{shop/views/0}}:meta seq 1 nonce {nonce}");
    let _: i64 = reader.pair.command(&before).await;
    let reverted = reader.pending().await;
    assert_eq!(reader.values(&reverted).await, Err("again"));
    reader.add(1).await;
    reader.cut(1).await;
    let reverted = reader.pending().await;
    assert_eq!(reader.values(&reverted).await, Err("set back"));
    // a copy of the database from before the second batch
    let behind = Pending {
        last: LastCut {
            seq: 4,
            nonce: None,
            ..newer.last
        },
        ..newer
    };
    assert_eq!(reader.values(&behind).await, Err("behind"));
}
