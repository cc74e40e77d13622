//! The journals of the writers: one file per process, which outlives it. A hit has a line before
//! its call, and another once its outcome is known.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::site::JOBS;
use super::window::{Cause, Windows};
use crate::Result;

/// Unix milliseconds.
pub type Ms = u64;

pub fn now() -> Ms {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as Ms)
}

/// A family's index, and an id.
pub type Counter = (usize, u64);

/// A hit of one counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// The index of its family.
    pub family: usize,
    pub id: u64,
    /// A name that no other hit has.
    pub name: String,
}

/// The writing end of one process's journal.
pub struct Scribe(File);

impl Scribe {
    pub fn create(directory: &Path, number: usize) -> Result<Self> {
        Ok(Scribe(File::create_new(path(directory, number))?))
    }

    /// Notes that these hits are about to be counted.
    pub fn begin(&self, hits: &[Hit]) -> Result<()> {
        self.write(hits.iter().map(|hit| ("+", hit, 0)), hits.len())
    }

    /// Notes the epoch in which a job is counted.
    pub fn remember(&self, job: &Hit, epoch: &str) -> Result<()> {
        let Hit { family, id, name } = job;
        let line = format!("@ {family} {id} {name} {epoch} 0 1\n");
        Ok((&self.0).write_all(line.as_bytes())?)
    }

    /// Notes the outcomes that are known: `true` for a hit that was counted, `false` for one that
    /// was not. Their call began at this time, and had so many hits.
    pub fn end<'h>(
        &self,
        known: impl Iterator<Item = (&'h Hit, bool)>,
        begun: Ms,
        of: usize,
    ) -> Result<()> {
        let marked =
            known.map(|(hit, is_counted)| (if is_counted { "=" } else { "-" }, hit, begun));
        self.write(marked, of)
    }

    /// Writes all lines at once, so that they survive the process.
    fn write<'h>(
        &self,
        lines: impl Iterator<Item = (&'static str, &'h Hit, Ms)>,
        of: usize,
    ) -> Result<()> {
        let end = now();
        let lines = lines.map(|(mark, hit, begun)| {
            let Hit { family, id, name } = hit;
            format!("{mark} {family} {id} {name} {begun} {end} {of}\n")
        });
        let lines: String = lines.collect();
        Ok((&self.0).write_all(lines.as_bytes())?)
    }
}

/// The hits of one counter by the journals.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    begun: i64,
    refused: i64,
    /// The times of acknowledged hits.
    times: Vec<Time>,
}

/// The time of an acknowledged hit.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// When the first call for it began. Any of its calls may have counted it.
    pub first: Ms,
    /// When the call that was acknowledged began and ended.
    pub begun: Ms,
    pub end: Ms,
}

impl Counted {
    pub fn acknowledged(&self) -> i64 {
        self.times.len() as i64
    }

    /// Returns the hits that were acknowledged or have no known outcome.
    pub fn most(&self) -> i64 {
        self.begun - self.refused
    }

    /// Returns the number of acknowledged hits of such times.
    pub fn acknowledged_at(&self, is_such: impl Fn(Time) -> bool) -> i64 {
        self.times.iter().filter(|time| is_such(**time)).count() as i64
    }

    /// Forgets an acknowledged hit, as if no line was written of it.
    pub fn forget_one(&mut self) {
        self.begun -= i64::from(self.times.pop().is_some());
    }

    /// Returns how many of the first `of` acknowledged hits may be missing.
    pub fn exposed(&self, counter: Counter, windows: &Windows, of: i64) -> Exposed {
        let mut exposed = Exposed::default();
        for time in self.times.iter().take(usize::try_from(of).unwrap_or(0)) {
            match windows.explain(counter, *time) {
                Some(Cause::Redis) => exposed.by_redis += 1,
                Some(Cause::Backup) => exposed.by_backup += 1,
                None => {}
            }
        }
        exposed
    }
}

/// The numbers of hits that may be missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exposed {
    pub by_redis: i64,
    pub by_backup: i64,
}

impl Exposed {
    pub fn all(self) -> i64 {
        self.by_redis + self.by_backup
    }

    pub fn add(&mut self, more: Exposed) {
        self.by_redis += more.by_redis;
        self.by_backup += more.by_backup;
    }
}

/// The journals of a round, as far as they were read.
pub struct Journals {
    directory: PathBuf,
    /// The files, each with the beginning of a line that is not complete yet.
    files: Vec<(BufReader<File>, String)>,
    pub counters: BTreeMap<Counter, Counted>,
    /// The hits that each process acknowledged.
    pub by_process: Vec<i64>,
    /// The acknowledged hits whose call had no other hit.
    pub single: i64,
    /// The jobs without a known outcome, and when they began.
    pub open: BTreeMap<Hit, Ms>,
    /// The epochs of jobs.
    pub epochs: BTreeMap<Hit, String>,
}

impl Journals {
    pub fn new(directory: PathBuf) -> Self {
        Journals {
            directory,
            files: Vec::new(),
            counters: BTreeMap::new(),
            by_process: Vec::new(),
            single: 0,
            open: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    /// Reads the lines that were written since the last call.
    pub fn read(&mut self) -> Result<()> {
        let mut files = std::mem::take(&mut self.files);
        while let Ok(file) = File::open(path(&self.directory, files.len())) {
            files.push((BufReader::new(file), String::new()));
            self.by_process.push(0);
        }
        for (number, (file, line)) in files.iter_mut().enumerate() {
            while file.read_line(line)? > 0 && line.ends_with('\n') {
                self.add(number, line)?;
                line.clear();
            }
        }
        self.files = files;
        Ok(())
    }

    fn add(&mut self, process: usize, line: &str) -> Result<()> {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[mark, family, id, name, begun, end, of] = &words[..] else {
            return Err(format!("a line of a journal: {line:?}").into());
        };
        let (family, id, name) = (family.parse()?, id.parse()?, name.to_owned());
        if mark == "@" {
            let job = Hit { family, id, name };
            self.epochs.insert(job, begun.to_owned());
            return Ok(());
        }
        let (begun, end): (Ms, Ms) = (begun.parse()?, end.parse()?);
        let mut first = begun;
        if family == JOBS {
            let hit = Hit { family, id, name };
            if mark == "+" {
                self.open.insert(hit, end);
            } else if let Some(opened) = self.open.remove(&hit) {
                first = opened;
            } else {
                // another call of it has been acknowledged
                return Ok(());
            }
        }
        let counted = self.counters.entry((family, id)).or_default();
        match mark {
            "+" => counted.begun += 1,
            "-" => counted.refused += 1,
            _ => {
                counted.times.push(Time { first, begun, end });
                self.by_process[process] += 1;
                self.single += i64::from(of == "1");
            }
        }
        Ok(())
    }
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("hits-{number}"))
}
