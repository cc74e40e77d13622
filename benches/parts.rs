//! Benchmarks of individual parts: `./dev bench parts [FILTER]`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;
use std::time::Duration;

use counterfoil::test_hooks::{Cut, Partition, RotateReply};
use counterfoil::{Family, KeyType, Table};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use testkit::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;

criterion_group! {
    name = parts;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = ids, scripts
}
criterion_main!(parts);

/// Measures the checks of an id before a hit leaves the process.
fn ids(criterion: &mut Criterion) {
    let own = Family::buffered("bench", "own").build().unwrap().clone();
    let table = Table::upsert("visitors")
        .key("store_id", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("count");
    let typed = Family::buffered("bench", "typed")
        .table(table)
        .build()
        .unwrap()
        .clone();
    let id = "12345/2014-09-20";
    criterion.bench_function("id/partition_of", |bench| {
        bench.iter(|| own.partition_of(black_box(id)))
    });
    criterion.bench_function("id/check", |bench| {
        bench.iter(|| own.check_id(black_box(id)))
    });
    criterion.bench_function("id/check_typed", |bench| {
        bench.iter(|| typed.check_id(black_box(id)))
    });
}

/// Measures each script, one call after the other, on a private Redis.
fn scripts(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let family = Family::buffered("bench", "parts").build().unwrap().clone();
    let redis = runtime.block_on(RedisServer::start(RedisOptions::volatile()));
    let partition = Partition::new(runtime.block_on(redis.manager()), &family, 0);
    let ids: Vec<_> = (0..1000).map(|number| format!("page/{number}")).collect();
    let pairs: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    let names: Vec<_> = ids.iter().map(String::as_str).collect();
    // above 512 ids Redis stores a hash as a table, as in a busy partition; below, each HINCRBY
    // scans a list
    runtime
        .block_on(partition.add(
            &family,
            partition.unfenced(),
            pairs.len() as u64,
            pairs.iter().copied(),
        ))
        .map(drop)
        .unwrap();
    let mut group = criterion.benchmark_group("script");
    for size in [1, 10, 100, 500] {
        group.throughput(Throughput::Elements(size as u64));
        group.bench_function(BenchmarkId::new("add", size), |bench| {
            bench.to_async(&runtime).iter(|| {
                partition.add(
                    &family,
                    partition.unfenced(),
                    size as u64,
                    pairs[..size].iter().copied(),
                )
            });
        });
        group.bench_function(BenchmarkId::new("read", size), |bench| {
            bench
                .to_async(&runtime)
                .iter(|| partition.read(&names[..size]));
        });
    }
    let few = Partition::new(runtime.block_on(redis.manager()), &family, 1);
    group.bench_function(BenchmarkId::new("add_to_list", 500), |bench| {
        bench
            .to_async(&runtime)
            .iter(|| few.add(&family, few.unfenced(), 500, pairs[..500].iter().copied()));
    });
    group.throughput(Throughput::Elements(pairs.len() as u64));
    group.bench_function(
        BenchmarkId::new("rotate_fetch_release", pairs.len()),
        |bench| {
            let filled = || {
                runtime
                    .block_on(partition.add(
                        &family,
                        partition.unfenced(),
                        pairs.len() as u64,
                        pairs.iter().copied(),
                    ))
                    .map(drop)
                    .unwrap()
            };
            bench.iter_batched(
                filled,
                |()| runtime.block_on(batch_through(&family, &partition)),
                BatchSize::PerIteration,
            );
        },
    );
}

async fn batch_through(family: &Family, partition: &Partition) {
    let cut = partition.rotate(family, "", None, Cut::Now).await.unwrap();
    let RotateReply::Batch(batch) = cut else {
        panic!("nothing was cut: {cut:?}")
    };
    partition
        .fetch(batch.id, Duration::ZERO, 500)
        .await
        .unwrap();
    assert!(partition.release(batch.id).await.unwrap());
}
