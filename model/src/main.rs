//! Checks the large cases, one after the other.
//!
//! `counterfoil-model [FILTER]` checks those whose name contains FILTER. It prints the number of
//! states that each case visited, and fails if a property of any case does not hold.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use counterfoil_model::cached::Cached;
use counterfoil_model::deltas::{Deltas, Incarnation};
use counterfoil_model::fence::Fence;
use counterfoil_model::recount::{AddedRows, DeletedRows};
use counterfoil_model::requests::Requests;
use counterfoil_model::{Checkable, Crash, Outcome, check};

struct Case {
    name: &'static str,
    check: Box<dyn FnOnce() -> Outcome>,
}

fn main() -> ExitCode {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let cases: Vec<Case> = cases()
        .into_iter()
        .filter(|case| case.name.contains(&filter))
        .collect();
    if cases.is_empty() {
        eprintln!("no case has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    let (count, mut states, mut failed) = (cases.len(), 0, 0);
    for Case { name, check } in cases {
        let outcome = check();
        let verdict = if outcome.has_passed() {
            "passed"
        } else {
            "FAILED"
        };
        println!(
            "{name:<56} {:>10} states {:>6.1} s  {verdict}",
            outcome.states,
            outcome.time.as_secs_f64()
        );
        print!("{outcome}");
        states += outcome.states;
        failed += usize::from(!outcome.has_passed());
    }
    println!("{count} cases, {states} states, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn case(name: &'static str, model: impl Checkable) -> Case {
    let check = Box::new(move || {
        // A terminal shows one line, which is overwritten. A log gets a line each second.
        let is_terminal = stderr().is_terminal();
        check(model, |states| {
            if is_terminal {
                eprint!("{name:<56} {states:>10} states\r");
            } else {
                eprintln!("{name}: {states} states so far");
            }
        })
    });
    Case { name, check }
}

fn cases() -> Vec<Case> {
    let deltas = |crash| Deltas {
        hits: 3,
        workers: 2,
        ..Deltas::new(crash)
    };
    let last_fsync = deltas(Crash::ToLastFsync);
    let emptied = deltas(Crash::Emptied);
    let set_back = deltas(Crash::SetBack);
    let whole_batches = Deltas {
        crashes: 2,
        parts: false,
        reader: false,
        ..set_back.clone()
    };

    let cached = |crash| Cached {
        hits: 3,
        workers: 2,
        ..Cached::new(crash)
    };
    let cached_last_fsync = cached(Crash::ToLastFsync);
    let cached_emptied = cached(Crash::Emptied);
    let cached_set_back = cached(Crash::SetBack);

    let sold_out = |crash| Cached {
        outside_writer: true,
        sold_out: true,
        ..cached(crash)
    };
    let saved_in_parts = |crash| Cached {
        counters: 2,
        expiries: 1,
        ..cached(crash)
    };

    vec![
        case(
            "deltas, last fsync, 2 crashes",
            Deltas {
                crashes: 2,
                ..last_fsync.clone()
            },
        ),
        case(
            "deltas, last fsync, repeated calls",
            Deltas {
                repeats: true,
                ..last_fsync.clone()
            },
        ),
        case(
            "deltas, last fsync, repeated calls, unconfigured",
            Deltas {
                repeats: true,
                incarnation: Incarnation::FirstHit,
                ..last_fsync
            },
        ),
        case(
            "deltas, last fsync, a replica",
            Deltas {
                replica: true,
                ..last_fsync.clone()
            },
        ),
        case(
            "deltas, last fsync, a failover of the database",
            Deltas {
                replica: true,
                failovers: 1,
                ..last_fsync.clone()
            },
        ),
        case(
            "deltas, emptied, a replica",
            Deltas {
                replica: true,
                ..emptied.clone()
            },
        ),
        case(
            "deltas, emptied, 2 crashes",
            Deltas {
                crashes: 2,
                ..emptied.clone()
            },
        ),
        case(
            "deltas, emptied, repeated calls",
            Deltas {
                repeats: true,
                ..emptied
            },
        ),
        case("deltas, set back", set_back.clone()),
        case(
            "deltas, set back, a failover of the database",
            Deltas {
                replica: true,
                failovers: 1,
                reader: false,
                ..set_back.clone()
            },
        ),
        case(
            "deltas, set back, 2 crashes",
            Deltas {
                hits: 2,
                crashes: 2,
                ..set_back.clone()
            },
        ),
        case(
            "deltas, set back, 2 crashes, whole batches",
            whole_batches.clone(),
        ),
        case(
            "deltas, set back, repeated calls, 1 worker",
            Deltas {
                workers: 1,
                repeats: true,
                ..set_back.clone()
            },
        ),
        case(
            "deltas, set back, repeated calls, 2 workers",
            Deltas {
                hits: 2,
                repeats: true,
                ..set_back
            },
        ),
        case(
            "deltas, set back, repeated calls, 2 crashes",
            Deltas {
                workers: 1,
                repeats: true,
                ..whole_batches
            },
        ),
        case(
            "fence, last fsync",
            Fence {
                epochs: 2,
                ..Fence::new(false)
            },
        ),
        case(
            "fence, last fsync, 2 crashes",
            Fence {
                epochs: 2,
                crashes: 2,
                ..Fence::new(false)
            },
        ),
        case(
            "fence, emptied, 2 crashes",
            Fence {
                epochs: 2,
                crashes: 2,
                ..Fence::new(true)
            },
        ),
        case(
            "fence, copies, 2 calls each",
            Fence {
                copies: true,
                calls: vec![2, 2],
                ..Fence::new(false)
            },
        ),
        case(
            "fence, emptied, 2 calls each",
            Fence {
                calls: vec![2, 2],
                epochs: 2,
                ..Fence::new(true)
            },
        ),
        case(
            "requests, last fsync, 3 generations",
            Requests {
                generations: 3,
                crashes: 1,
                ..Requests::new(false)
            },
        ),
        case(
            "requests, emptied, 3 generations",
            Requests {
                generations: 3,
                crash: Crash::Emptied,
                crashes: 1,
                ..Requests::new(false)
            },
        ),
        case(
            "requests, set back, 2 crashes",
            Requests {
                generations: 1,
                batches: 2,
                since: false,
                crash: Crash::SetBack,
                crashes: 2,
                attempts: vec![1, 1],
                ..Requests::new(false)
            },
        ),
        case(
            "requests, set back, generations that jobs stored",
            Requests {
                batches: 2,
                crash: Crash::SetBack,
                crashes: 1,
                ..Requests::new(false)
            },
        ),
        case(
            "requests of a cached counter with bounds",
            Requests {
                since: false,
                refused: true,
                ..Requests::new(true)
            },
        ),
        case(
            "requests of a cached counter, last fsync",
            Requests {
                refused: true,
                sends_once: true,
                generations: 1,
                crashes: 1,
                ..Requests::new(true)
            },
        ),
        case(
            "cached, last fsync, 2 crashes",
            Cached {
                crashes: 2,
                ..cached_last_fsync.clone()
            },
        ),
        case(
            "cached, last fsync, outside writer",
            Cached {
                outside_writer: true,
                ..cached_last_fsync
            },
        ),
        case(
            "cached, emptied, 2 crashes",
            Cached {
                crashes: 2,
                ..cached_emptied.clone()
            },
        ),
        case(
            "cached, emptied, outside writer",
            Cached {
                outside_writer: true,
                ..cached_emptied
            },
        ),
        case("cached, set back, 2 workers", cached_set_back.clone()),
        case(
            "cached, set back, 2 crashes",
            Cached {
                workers: 1,
                crashes: 2,
                ..cached_set_back.clone()
            },
        ),
        case(
            "cached, set back, 2 crashes, outside writer",
            Cached {
                workers: 1,
                crashes: 2,
                outside_writer: true,
                ..cached_set_back
            },
        ),
        case(
            "cached, last fsync, 2 counters saved in parts",
            saved_in_parts(Crash::ToLastFsync),
        ),
        case(
            "cached, emptied, 2 counters saved in parts",
            saved_in_parts(Crash::Emptied),
        ),
        case(
            "cached, set back, 2 counters saved in parts",
            Cached {
                clients: 1,
                ..saved_in_parts(Crash::SetBack)
            },
        ),
        case(
            "cached, last fsync, sold out and refilled",
            Cached {
                workers: 1,
                ..sold_out(Crash::ToLastFsync)
            },
        ),
        case(
            "cached, emptied, sold out and refilled",
            Cached {
                workers: 1,
                ..sold_out(Crash::Emptied)
            },
        ),
        case(
            "cached, set back, sold out and refilled",
            Cached {
                workers: 1,
                ..sold_out(Crash::SetBack)
            },
        ),
        case(
            "cached, last fsync, 2 tickets end",
            Cached {
                expiries: 2,
                ..Cached::new(Crash::ToLastFsync)
            },
        ),
        case(
            "recount, rows only added",
            AddedRows {
                rows: 3,
                runs: 3,
                ..AddedRows::new()
            },
        ),
        case(
            "recount, rows only added, on a replica",
            AddedRows {
                rows: 3,
                replica: true,
                ..AddedRows::new()
            },
        ),
        case(
            "recount, hits that are refused",
            AddedRows {
                refusals: 2,
                ..AddedRows::new()
            },
        ),
        case(
            "recount, rows also deleted",
            DeletedRows {
                events: 5,
                ..DeletedRows::new()
            },
        ),
        case(
            "recount, rows also deleted, on a replica",
            DeletedRows {
                events: 4,
                replica: true,
                ..DeletedRows::new()
            },
        ),
    ]
}
