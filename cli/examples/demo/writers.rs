//! Processes in Python and Node that count with the Lua bundle, and their confirmed counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use counterfoil::sqlx::MySqlPool;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::site::Site;
use crate::{BoxError, Result, stored};

/// The number of processes of each language.
const PROCESSES: usize = 3;

/// A line of output of a process.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    /// The process needs the value of this row.
    Row(String),
    /// The process has stopped.
    Told(Told),
}

/// The counts that Redis confirmed to the writers.
#[derive(Default, Deserialize)]
pub struct Told {
    /// The sums by family and id.
    pub sums: BTreeMap<String, BTreeMap<String, i64>>,
    /// The number of calls with an unknown outcome.
    pub unknown: u64,
}

impl Told {
    pub fn of(&self, family: &str, id: &str) -> i64 {
        self.sums
            .get(family)
            .and_then(|sums| sums.get(id))
            .copied()
            .unwrap_or(0)
    }

    fn add(&mut self, more: Told) {
        self.unknown += more.unknown;
        for (family, sums) in more.sums {
            let all = self.sums.entry(family).or_default();
            sums.into_iter()
                .for_each(|(id, sum)| *all.entry(id).or_default() += sum);
        }
    }
}

pub struct Writers {
    stop: watch::Sender<bool>,
    attended: JoinSet<Result<Told>>,
}

impl Writers {
    pub fn start(site: &Site) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var("COUNTERFOIL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let modules = std::env::var("COUNTERFOIL_NODE_MODULES").unwrap_or_default();
        let (stop, stopping) = watch::channel(false);
        let mut attended = JoinSet::new();
        for _ in 0..PROCESSES {
            for (program, script) in [(python.as_str(), "writer.py"), ("node", "writer.mjs")] {
                let process = Command::new(program)
                    .arg(root.join("examples/demo").join(script))
                    .arg(site.redis_socket())
                    .arg(root.join("../lua"))
                    .env("NODE_PATH", &modules)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .process_group(0) // Ctrl-C is for the demo alone
                    .kill_on_drop(true)
                    .spawn()
                    .map_err(|error| format!("{program} {script}: {error}"))?;
                attended.spawn(attend(
                    script,
                    process,
                    site.mysql.clone(),
                    stopping.clone(),
                ));
            }
        }
        Ok(Writers { stop, attended })
    }

    /// Returns only if a writer fails or ends before `stop`.
    pub async fn failed(&mut self) -> BoxError {
        match self.attended.join_next().await {
            Some(Ok(Err(error))) => error,
            _ => "a writer stopped by itself".into(),
        }
    }

    /// Lets each writer finish its call, and returns the sum of their counts.
    pub async fn stop(self) -> Result<Told> {
        self.stop.send_replace(true);
        let mut all = Told::default();
        for told in self.attended.join_all().await {
            all.add(told?);
        }
        Ok(all)
    }
}

/// Sends a process the rows that it asks for, until it has stopped.
async fn attend(
    script: &str,
    mut process: Child,
    mysql: MySqlPool,
    mut stopping: watch::Receiver<bool>,
) -> Result<Told> {
    let (Some(mut orders), Some(said)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(format!("{script} was started without its pipes").into());
    };
    let mut said = BufReader::new(said).lines();
    let mut is_told = false;
    loop {
        let line = tokio::select! {
            line = said.next_line() => line?.ok_or_else(|| format!("{script} ended by itself"))?,
            _ = stopping.changed(), if !is_told => {
                is_told = true;
                orders.write_all(b"stop\n").await?;
                continue;
            }
        };
        match serde_json::from_str(&line)
            .map_err(|error| format!("{script} says {line}: {error}"))?
        {
            Said::Row(id) => {
                orders
                    .write_all(format!("{}\n", stored::votes(&mysql, &id).await?).as_bytes())
                    .await?
            }
            Said::Told(told) => return Ok(told),
        }
    }
}
