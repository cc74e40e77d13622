//! The values that the voters received, each with its item, in one file per voter.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::Result;

/// The directory of the files.
#[derive(clap::Args)]
pub struct ToldTo {
    #[arg(long)]
    directory: PathBuf,
}

/// The writing end of one voter's file. A line is `item value`, or `item ?` if the outcome is
/// unknown.
pub struct Scribe(File);

/// All outcomes, by item.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<u32, Outcomes>);

/// The outcomes of the votes for one item.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    pub values: Vec<i64>,
    /// Votes with an unknown outcome.
    pub unknown: u64,
}

fn path(directory: &Path, voter: usize) -> PathBuf {
    directory.join(format!("told-{voter}"))
}

impl Scribe {
    pub fn new(to: &ToldTo, voter: usize) -> Result<Self> {
        Ok(Scribe(File::create(path(&to.directory, voter))?))
    }

    pub fn value(&self, item: u32, value: i64) -> Result<()> {
        self.write(format!("{item} {value}\n"))
    }

    pub fn unknown(&self, item: u32) -> Result<()> {
        self.write(format!("{item} ?\n"))
    }

    /// Writes the line at once, so that it survives the process.
    fn write(&self, line: String) -> Result<()> {
        Ok((&self.0).write_all(line.as_bytes())?)
    }
}

impl Told {
    /// Adds the outcomes of one voter.
    pub fn read(&mut self, directory: &Path, voter: usize) -> Result<()> {
        for line in BufReader::new(File::open(path(directory, voter))?).lines() {
            let line = line?;
            let (item, value) = line.split_once(' ').ok_or("a voter's file is torn")?;
            let outcomes = self.0.entry(item.parse()?).or_default();
            match value {
                "?" => outcomes.unknown += 1,
                value => outcomes.values.push(value.parse()?),
            }
        }
        Ok(())
    }

    pub fn take(&mut self, item: u32) -> Outcomes {
        self.0.remove(&item).unwrap_or_default()
    }
}
