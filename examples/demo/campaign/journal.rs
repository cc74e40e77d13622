//! The journals of the writers: one file per process, which outlives it. A hit has a line before
//! its call, and another once its outcome is known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::site::JOBS;
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
        self.write(hits.iter().map(|hit| ("+", hit, 0)))
    }

    /// Notes the outcomes that are known: `true` for a hit that was counted, `false` for one that
    /// was not. Their call began at this time.
    pub fn end<'h>(&self, known: impl Iterator<Item = (&'h Hit, bool)>, begun: Ms) -> Result<()> {
        self.write(known.map(|(hit, is_counted)| (if is_counted { "=" } else { "-" }, hit, begun)))
    }

    /// Writes all lines at once, so that they survive the process.
    fn write<'h>(&self, lines: impl Iterator<Item = (&'static str, &'h Hit, Ms)>) -> Result<()> {
        let end = now();
        let lines = lines.map(|(mark, hit, begun)| {
            let Hit { family, id, name } = hit;
            format!("{mark} {family} {id} {name} {begun} {end}\n")
        });
        let lines: String = lines.collect();
        Ok((&self.0).write_all(lines.as_bytes())?)
    }
}

/// The hits of one counter by the journals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    begun: i64,
    refused: i64,
    pub acknowledged: i64,
    /// The acknowledged hits that a crash of Redis may lose.
    pub exposed: i64,
}

impl Counted {
    /// Returns the hits that were acknowledged or have no known outcome.
    pub fn most(self) -> i64 {
        self.begun - self.refused
    }
}

/// The journals of a round, as far as they were read.
pub struct Journals {
    directory: PathBuf,
    /// The times whose hits a crash of Redis may lose.
    lost: Vec<RangeInclusive<Ms>>,
    /// The files, each with the beginning of a line that is not complete yet.
    files: Vec<(BufReader<File>, String)>,
    pub counters: BTreeMap<Counter, Counted>,
    /// The jobs without a known outcome.
    pub open: BTreeSet<Hit>,
}

impl Journals {
    pub fn new(directory: PathBuf, lost: Vec<RangeInclusive<Ms>>) -> Self {
        Journals {
            directory,
            lost,
            files: Vec::new(),
            counters: BTreeMap::new(),
            open: BTreeSet::new(),
        }
    }

    /// Reads the lines that were written since the last call.
    pub fn read(&mut self) -> Result<()> {
        let mut files = std::mem::take(&mut self.files);
        while let Ok(file) = File::open(path(&self.directory, files.len())) {
            files.push((BufReader::new(file), String::new()));
        }
        for (file, line) in &mut files {
            while file.read_line(line)? > 0 && line.ends_with('\n') {
                self.add(line)?;
                line.clear();
            }
        }
        self.files = files;
        Ok(())
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[mark, family, id, name, begun, end] = &words[..] else {
            return Err(format!("a line of a journal: {line:?}").into());
        };
        let (family, id, name) = (family.parse()?, id.parse()?, name.to_owned());
        let (begun, end): (Ms, Ms) = (begun.parse()?, end.parse()?);
        let counted = self.counters.entry((family, id)).or_default();
        match mark {
            "+" => counted.begun += 1,
            "-" => counted.refused += 1,
            _ => {
                counted.acknowledged += 1;
                let is_exposed =
                    |lost: &RangeInclusive<Ms>| begun <= *lost.end() && end >= *lost.start();
                counted.exposed += i64::from(self.lost.iter().any(is_exposed));
            }
        }
        let hit = Hit { family, id, name };
        if mark != "+" {
            self.open.remove(&hit);
        } else if family == JOBS {
            self.open.insert(hit);
        }
        Ok(())
    }
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("hits-{number}"))
}
