//! The journals of the writers: one file per process, which outlives it. A hit has a line before
//! its call, and another once its outcome is known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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

/// What the journals say of one counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub begun: i64,
    pub acknowledged: i64,
    pub refused: i64,
    /// The acknowledged hits that a crash of Redis may lose.
    pub exposed: i64,
}

/// All journals of a round.
#[derive(Default)]
pub struct Journals {
    pub counters: BTreeMap<Counter, Counted>,
    /// The hits without a known outcome.
    pub open: BTreeSet<Hit>,
}

impl Journals {
    /// Reads the journals of processes 0 to `writers`. A crash may lose the hits whose calls were
    /// made within one of the times in `lost`.
    pub fn read(directory: &Path, writers: usize, lost: &[RangeInclusive<Ms>]) -> Result<Self> {
        let mut journals = Journals::default();
        for number in 0..writers {
            for line in BufReader::new(File::open(path(directory, number))?).lines() {
                journals.add(&line?, lost)?;
            }
        }
        Ok(journals)
    }

    fn add(&mut self, line: &str, lost: &[RangeInclusive<Ms>]) -> Result<()> {
        let words: Vec<_> = line.split(' ').collect();
        let &[mark, family, id, name, begun, end] = &words[..] else {
            // the last line of a process that was killed
            return Ok(());
        };
        let (family, id, name) = (family.parse()?, id.parse()?, name.to_owned());
        let (begun, end): (Ms, Ms) = (begun.parse()?, end.parse()?);
        let hit = Hit { family, id, name };
        let counted = self.counters.entry((family, id)).or_default();
        if mark == "+" {
            counted.begun += 1;
            self.open.insert(hit);
            return Ok(());
        }
        self.open.remove(&hit);
        if mark == "=" {
            counted.acknowledged += 1;
            let is_exposed =
                |lost: &RangeInclusive<Ms>| begun <= *lost.end() && end >= *lost.start();
            counted.exposed += i64::from(lost.iter().any(is_exposed));
        } else {
            counted.refused += 1;
        }
        Ok(())
    }
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("hits-{number}"))
}
