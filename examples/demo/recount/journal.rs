//! What each writer writes down before and after its steps, so that the supervisor knows what the rows explain whenever a
//! writer dies: a file for each, that outlives it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;

/// Writes one writer's file, a step a line.
pub struct Scribe(File);

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("saved-{number}"))
}

impl Scribe {
    /// The supervisor made the file.
    pub fn new(directory: &Path, number: usize) -> Result<Self> {
        Ok(Scribe(File::options().append(true).open(path(directory, number))?))
    }

    /// A row is about to be inserted.
    pub fn inserts(&self, user: u32) -> Result<()> {
        self.write(format!("insert {user} 0 0\n"))
    }

    /// Nobody knows whether the row is there, and it will not be counted.
    pub fn lost(&self, user: u32) -> Result<()> {
        self.write(format!("lost {user} 0 0\n"))
    }

    /// The row is about to be counted so many times.
    pub fn counts(&self, user: u32, times: i64) -> Result<()> {
        self.write(format!("count {user} {times} 0\n"))
    }

    /// It was counted so many times, 0 where nobody knows, and that was so long after its insert began.
    pub fn counted(&self, user: u32, times: i64, took: Duration) -> Result<()> {
        self.write(format!("counted {user} {times} {}\n", took.as_millis()))
    }

    /// At once, so that it is there whenever the process ends.
    fn write(&self, line: String) -> Result<()> {
        Ok((&self.0).write_all(line.as_bytes())?)
    }
}

/// What is known of one user's rows.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// Rows whose count began, or was done.
    counting: i64,
    counted: i64,
    /// Rows that nobody counts any more, if they are there.
    lost: i64,
    /// How many counts of rows were second ones, as far as they began.
    pub twice: i64,
}

/// The journals of all writers.
pub struct Journals {
    directory: PathBuf,
    users: Vec<User>,
    open: Vec<Journal>,
    opened: usize,
    begun: u64,
    /// From the begin of an insert to the end of its count.
    pub slowest: Duration,
}

struct Journal {
    number: usize,
    lines: BufReader<File>,
    /// The begin of a line that is not all there.
    torn: String,
    /// Rows by user that were begun and whose count was not.
    coming: Vec<i64>,
    is_dying: bool,
}

impl Journals {
    /// Of users from 1.
    pub fn new(directory: &Path, users: u32) -> Self {
        Journals {
            directory: directory.to_owned(),
            users: vec![User::default(); users as usize],
            open: Vec::new(),
            opened: 0,
            begun: 0,
            slowest: Duration::ZERO,
        }
    }

    /// Makes the file of another writer, before it runs. Returns its number.
    pub fn open_next(&mut self) -> Result<usize> {
        let number = self.opened;
        let path = path(&self.directory, number);
        File::create_new(&path)?;
        let lines = BufReader::new(File::open(path)?);
        let coming = vec![0; self.users.len()];
        self.open.push(Journal { number, lines, torn: String::new(), coming, is_dying: false });
        self.opened += 1;
        Ok(number)
    }

    /// From now on its rows may be some that are never counted.
    pub fn dying(&mut self, number: usize) {
        let own = self.open.iter_mut().filter(|journal| journal.number == number);
        own.for_each(|journal| journal.is_dying = true);
    }

    /// There will be no more lines.
    pub fn dead(&mut self, number: usize) -> Result<()> {
        self.read()?;
        for journal in self.open.extract_if(.., |journal| journal.number == number) {
            for (user, coming) in self.users.iter_mut().zip(journal.coming) {
                user.lost += coming;
            }
        }
        Ok(())
    }

    /// Takes in what has been written by now.
    pub fn read(&mut self) -> Result<()> {
        for journal in &mut self.open {
            while journal.lines.read_line(&mut journal.torn)? > 0 && journal.torn.ends_with('\n') {
                let line = std::mem::take(&mut journal.torn);
                let mut words = line.split_whitespace();
                let step = words.next().unwrap_or_default();
                let mut number = || words.next().unwrap_or_default().parse::<i64>();
                let (at, times, took) = (usize::try_from(number()? - 1)?, number()?, number()?);
                let (user, coming) = (&mut self.users[at], &mut journal.coming[at]);
                match step {
                    "insert" => {
                        *coming += 1;
                        self.begun += 1;
                    }
                    "lost" => {
                        *coming -= 1;
                        user.lost += 1;
                    }
                    "count" => {
                        *coming -= 1;
                        user.counting += 1;
                        user.twice += times - 1;
                    }
                    _ => {
                        user.counted += times.min(1);
                        self.slowest = self.slowest.max(Duration::from_millis(took.try_into()?));
                    }
                }
            }
        }
        Ok(())
    }

    /// Rows that were begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Second counts of rows, and how many rows were counted for sure, and at most.
    pub fn sums(&self) -> (i64, i64, i64) {
        let sum = |of: fn(&User) -> i64| self.users.iter().map(of).sum();
        (sum(|user| user.twice), sum(|user| user.counted), sum(|user| user.counting))
    }

    /// The least that a read may return from now on: what was counted for sure.
    pub fn least(&self) -> Vec<i64> {
        self.users.iter().map(|user| user.counted).collect()
    }

    /// The most that a read may have returned: all that may have been counted, also twice, and what may have been found
    /// never to be.
    pub fn most(&self) -> Vec<i64> {
        let dying: Vec<_> = self.open.iter().filter(|journal| journal.is_dying).collect();
        let most = |(at, user): (usize, &User)| {
            let coming: i64 = dying.iter().map(|journal| journal.coming[at]).sum();
            user.counting + user.twice + user.lost + coming
        };
        self.users.iter().enumerate().map(most).collect()
    }

    /// By how much a counter may stand too high: it is never taken down by more.
    pub fn surplus(&self) -> Vec<i64> {
        self.users.iter().map(|user| user.twice).collect()
    }
}
