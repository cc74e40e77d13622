//! The journals of the writers: one file per writer, which records each of its steps and outlives
//! it. The supervisor reads from them which values the rows explain, even after a writer dies.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;

/// The writing end of one writer's journal, one line per step.
pub struct Scribe(File);

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("saved-{number}"))
}

impl Scribe {
    /// Opens the journal, which the supervisor has created.
    pub fn new(directory: &Path, number: usize) -> Result<Self> {
        Ok(Scribe(
            File::options().append(true).open(path(directory, number))?,
        ))
    }

    /// Records that a row is about to be inserted.
    pub fn inserts(&self, user: u32) -> Result<()> {
        self.write(format!("insert {user} 0 0\n"))
    }

    /// Records that the outcome of an insert is unknown and that its row will not be counted.
    pub fn lost(&self, user: u32) -> Result<()> {
        self.write(format!("lost {user} 0 0\n"))
    }

    /// Records that the row is about to be counted `times` times.
    pub fn counts(&self, user: u32, times: i64) -> Result<()> {
        self.write(format!("count {user} {times} 0\n"))
    }

    /// Records that the row was counted `times` times (0 if unknown), `took` after its insert
    /// began.
    pub fn counted(&self, user: u32, times: i64, took: Duration) -> Result<()> {
        self.write(format!("counted {user} {times} {}\n", took.as_millis()))
    }

    /// Writes the line at once, so that it survives the process.
    fn write(&self, line: String) -> Result<()> {
        Ok((&self.0).write_all(line.as_bytes())?)
    }
}

/// The state of one user's rows.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// Rows whose count began (`counting`), and rows that were definitely counted (`counted`).
    counting: i64,
    counted: i64,
    /// Rows that will never be counted, if they exist.
    lost: i64,
    /// Second counts of a row that may have begun.
    pub twice: i64,
}

/// The journals of all writers.
pub struct Journals {
    directory: PathBuf,
    users: Vec<User>,
    open: Vec<Journal>,
    opened: usize,
    begun: u64,
    /// The longest time from the start of an insert to the end of its count.
    pub slowest: Duration,
}

struct Journal {
    number: usize,
    lines: BufReader<File>,
    /// The beginning of an incomplete line.
    torn: String,
    /// Rows by user whose insert began and whose count did not.
    coming: Vec<i64>,
    is_dying: bool,
}

impl Journals {
    /// Creates the journals for users 1 to `users`.
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

    /// Creates the journal of another writer before it runs. Returns the writer's number.
    pub fn open_next(&mut self) -> Result<usize> {
        let number = self.opened;
        let path = path(&self.directory, number);
        File::create_new(&path)?;
        let lines = BufReader::new(File::open(path)?);
        let coming = vec![0; self.users.len()];
        self.open.push(Journal {
            number,
            lines,
            torn: String::new(),
            coming,
            is_dying: false,
        });
        self.opened += 1;
        Ok(number)
    }

    /// Marks a writer as dying: its uncounted rows may never be counted.
    pub fn dying(&mut self, number: usize) {
        let own = self
            .open
            .iter_mut()
            .filter(|journal| journal.number == number);
        own.for_each(|journal| journal.is_dying = true);
    }

    /// Reads the last lines of a dead writer and closes its journal.
    pub fn dead(&mut self, number: usize) -> Result<()> {
        self.read()?;
        for journal in self.open.extract_if(.., |journal| journal.number == number) {
            for (user, coming) in self.users.iter_mut().zip(journal.coming) {
                user.lost += coming;
            }
        }
        Ok(())
    }

    /// Reads the lines written since the last call.
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

    /// Returns the number of rows whose insert began.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the second counts, the rows that were definitely counted, and the rows that may have
    /// been counted.
    pub fn sums(&self) -> (i64, i64, i64) {
        let sum = |of: fn(&User) -> i64| self.users.iter().map(of).sum();
        (
            sum(|user| user.twice),
            sum(|user| user.counted),
            sum(|user| user.counting),
        )
    }

    /// Returns the lower bounds of later reads: the rows that were definitely counted.
    pub fn least(&self) -> Vec<i64> {
        self.users.iter().map(|user| user.counted).collect()
    }

    /// Returns the upper bounds of earlier reads: all rows that may have been counted, their second
    /// counts, and uncounted rows that a recount may have added.
    pub fn most(&self) -> Vec<i64> {
        let dying: Vec<_> = self
            .open
            .iter()
            .filter(|journal| journal.is_dying)
            .collect();
        let most = |(at, user): (usize, &User)| {
            let coming: i64 = dying.iter().map(|journal| journal.coming[at]).sum();
            user.counting + user.twice + user.lost + coming
        };
        self.users.iter().enumerate().map(most).collect()
    }

    /// Returns the most by which each counter may be too high. A recount never lowers it by more.
    pub fn surplus(&self) -> Vec<i64> {
        self.users.iter().map(|user| user.twice).collect()
    }
}
