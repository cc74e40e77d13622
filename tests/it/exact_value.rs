//! The exact value as lua/README.md describes it for clients in other languages: the statement, and
//! the comparison of its rows with what Redis has pending.

use crate::scripts::{fenced, keys};
use crate::vectors::{Run, lua};

use crate::support::*;

const IDS: [&str; 3] = ["a", "b", "c"];

/// The reply of `buffered_read`, with the batch that it names.
struct Pending {
    id: [String; 3],
    in_flight: bool,
    /// The deltas of batch and buffer for each id.
    deltas: Vec<(i64, i64)>,
}

/// A client of one partition, with its scripts and the statement of lua/README.md.
struct Reader {
    run: Run,
    pool: MySqlPool,
    statement: String,
}

impl Reader {
    fn add(&mut self, delta: i64) {
        let pairs = IDS.map(|id| [id.to_owned(), delta.to_string()]).concat();
        self.run.strings(
            "buffered_add",
            &fenced("buffer meta"),
            &[vec![String::new(); 4], vec!["3".to_owned(); 2], pairs].concat(),
        );
    }

    fn release(&mut self, id: &[String; 3]) {
        self.run
            .strings("buffered_release", &keys("batch meta"), id);
    }

    fn pending(&mut self) -> Pending {
        let words = self
            .run
            .strings("buffered_read", &keys("buffer batch meta"), &IDS);
        let deltas = words[5..]
            .chunks(2)
            .map(|pair| (pair[0].parse().unwrap(), pair[1].parse().unwrap()));
        Pending {
            id: [1, 2, 3].map(|i| words[i].clone()),
            in_flight: words[4] == "1",
            deltas: deltas.collect(),
        }
    }

    /// Returns the exact values by the table of lua/README.md, or the reason why there are none.
    async fn values(&self, pending: &Pending) -> Result<Vec<i128>, &'static str> {
        let number = |hex: &str| u64::from_str_radix(hex, 16).unwrap_or(0);
        let ([incarnation, seq, nonce], mut values) = (&pending.id, vec![]);
        let seq: i64 = seq.parse().unwrap();
        for (id, &(batch_delta, buffer_delta)) in IDS.iter().zip(&pending.deltas) {
            let row = sqlx::query(AssertSqlSafe(self.statement.clone()))
                .bind(*id)
                .bind(0)
                .bind(number(incarnation))
                .bind("shop")
                .bind("views")
                .fetch_one(&self.pool)
                .await
                .unwrap();
            let (value, a): (i64, i64) = (row.get("value"), row.get("a"));
            let (of_ledger, position): (Option<u64>, Option<Vec<u8>>) =
                (row.get("nonce"), row.get("position"));
            let (value, batch, buffer) = (
                i128::from(value),
                i128::from(batch_delta),
                i128::from(buffer_delta),
            );
            values.push(match position {
                _ if a > seq => return Err("again"),
                _ if a == seq && a != 0 && of_ledger != Some(number(nonce)) => {
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

    async fn expect(&mut self, sum: i128) -> Pending {
        let pending = self.pending();
        assert_eq!(
            self.values(&pending).await,
            Ok(vec![sum; IDS.len()]),
            "{:?}",
            pending.id
        );
        pending
    }

    fn cut(&mut self, family: &Arc<Registered>, delta: i64) -> Arc<Batch> {
        let words = self.run.strings(
            "buffered_rotate",
            &keys("buffer batch meta"),
            &[&*delta.to_string(), "", "0", "0", "0", "0", "", ""],
        );
        assert_eq!(words[0], "OK");
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let (incarnation, nonce) = (Incarnation(hex(&words[1])), Nonce(hex(&words[3])));
        let id = BatchId {
            incarnation,
            seq: words[2].parse().unwrap(),
            nonce,
        };
        let deltas = IDS.map(|id| (id.into(), delta)).into();
        Arc::new(Batch {
            family: family.clone(),
            partition: 0,
            id,
            deltas,
        })
    }
}

#[tokio::test]
async fn the_documented_statement_reads_the_exact_value_at_every_moment() {
    let (_server, run) = Run::new().await;
    let pool = database().await;
    let store = MysqlStore::new(pool.clone());
    let family = Family::buffered("shop", "views").partitions(1);
    let family = family.build().unwrap();
    let family = Arc::new(store.register(&family).await.unwrap());

    let readme = fs::read_to_string(lua().join("README.md")).unwrap();
    let statement = readme.split("```sql\n").nth(1).unwrap();
    let mut statement = statement.split("```").next().unwrap().to_owned();
    for name in [":id", ":partition", ":incarnation", ":namespace", ":name"] {
        statement = statement.replacen(name, "?", 1);
    }
    let statement = format!(
        "SELECT value, CAST(a AS SIGNED) AS a, nonce, position FROM ({statement}) AS readme"
    );
    let mut reader = Reader {
        run,
        pool,
        statement,
    };
    let settings = family.family.settings();
    reader.run.strings(
        "family_configure",
        &keys("calls meta"),
        &["salt", "", "buffered", "1", "1000", &settings, ""],
    );

    reader.expect(0).await;
    reader.add(5);
    let before = reader.expect(5).await;
    let batch = reader.cut(&family, 5);
    reader.add(2);
    let cut = reader.expect(7).await;
    for left in [2, 1] {
        assert_eq!(
            store
                .apply(std::slice::from_ref(&batch), Some(1))
                .await
                .unwrap()
                .progress,
            [Progress::Partial { left }]
        );
        reader.expect(7).await;
    }
    assert_eq!(
        store.apply(&[batch], Some(1)).await.unwrap().progress,
        [Progress::Complete]
    );
    reader.expect(7).await;
    reader.release(&cut.id);
    reader.expect(7).await;

    let batch = reader.cut(&family, 2);
    let newer = reader.expect(7).await;
    store.apply(&[batch], None).await.unwrap();
    reader.expect(7).await;
    for stale in [&before, &cut] {
        assert_eq!(reader.values(stale).await, Err("again"));
    }
    // sets Redis back to before the second cut, and cuts again
    reader.release(&newer.id);
    let (meta, first_nonce) = (&keys("meta")[0], &*cut.id[2]);
    let before = ["HSET", meta, "seq", "1", "nonce", first_nonce];
    let _: i64 = reader.run.get(&before);
    let reverted = reader.pending();
    assert_eq!(reader.values(&reverted).await, Err("again"));
    reader.add(1);
    reader.cut(&family, 1);
    let reverted = reader.pending();
    assert_eq!(reader.values(&reverted).await, Err("set back"));
    // a copy of the database from before the second batch
    let behind = Pending {
        id: [newer.id[0].clone(), "4".to_owned(), String::new()],
        ..newer
    };
    assert_eq!(reader.values(&behind).await, Err("behind"));
}
