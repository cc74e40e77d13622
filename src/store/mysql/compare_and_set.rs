//! Absolute values of cached counters into their rows: a compare-and-set of value and version, in one transaction for
//! many counters (docs/protocol.md, section 4.4).
//!
//! Most rows are as they were last known, and are [swapped](super::swap) in bulk. The long way is for the others: all of
//! them are locked and looked at, each by itself is decided about, and then they are written in bulk again.

use super::MysqlStore;
use super::fault;
use super::halves::{CHUNK, Halves};
use super::json::JsonRows;
use super::parts::Segment;
use super::positions;
use super::recount;
use super::rejects::{self, Origin, Rejected};
use super::session::Transaction;
use super::statement::Text;
use super::swap::{self, Swap};
use super::target::{self, Target};
use super::transact::{UnitOfWork, transact};
use super::versions::{self, Versions};
use crate::error::Result;
use crate::store::{Registered, Row, Save, Saved, Version};

/// What failed, where something does.
const FAILED: &str = "counters were not saved";

/// Saves the counters. With `trusting` no row is compared with what was known of it, which is for the tests that show
/// what versions are there for.
pub(super) async fn save(
    mysql: &MysqlStore,
    family: &Registered,
    saves: &[Save],
    trusting: bool,
) -> Result<Vec<Saved>> {
    let target = mysql.target(&family.family).await?;
    let work = Saves::new(&target, family, saves, trusting).map_err(fault::store(FAILED))?;
    transact(mysql, FAILED, &work).await
}

struct Saves<'s> {
    target: &'s Target,
    family: &'s Registered,
    saves: &'s [Save],
    /// In the key's order, so that everybody locks rows in one order.
    entries: Vec<Entry<'s>>,
    /// The places of saves whose id is no row's, and why.
    strays: Vec<(usize, String)>,
    trusting: bool,
}

/// A save with the row that it goes to.
struct Entry<'s> {
    key: Vec<Segment<'s>>,
    save: &'s Save,
    /// Its place among the saves.
    at: usize,
}

/// What the database has of a counter.
struct InDatabase {
    /// `None` where there is no row; the digits of a number that is no i64 as an error.
    value: Option<Result<i64, String>>,
    version: Option<Version>,
}

/// An entry with what was found of it.
type Compared<'w, 's> = (&'w Entry<'s>, &'w InDatabase);

/// What is to be done about an entry.
enum Step {
    /// The row is there and takes the value.
    Update,
    /// There is no row, and one is made.
    Insert,
    /// There is no row, and it is the application's to make.
    Skip,
    Refuse(String),
    Leave(Saved),
}

impl<'s> Saves<'s> {
    fn new(target: &'s Target, family: &'s Registered, saves: &'s [Save], trusting: bool) -> Result<Self, sqlx::Error> {
        let (mut entries, mut strays) = (Vec::with_capacity(saves.len()), Vec::new());
        for (at, save) in saves.iter().enumerate() {
            let key = std::str::from_utf8(&save.id).map_err(|_| rejects::NOT_UTF8.to_owned());
            match key.and_then(|id| target::segments(family, id)) {
                Ok(key) => entries.push(Entry { key, save, at }),
                Err(reason) => strays.push((at, reason)),
            }
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        match entries.windows(2).find(|pair| pair[0].key == pair[1].key) {
            None => Ok(Saves { target, family, saves, entries, strays, trusting }),
            Some(pair) => Err(sqlx::Error::Protocol(format!(
                "{:?} is saved twice at once",
                String::from_utf8_lossy(&pair[0].save.id)
            ))),
        }
    }

    /// Saves what is as known in bulk, and returns the entries that are left.
    async fn swap(
        &self,
        transaction: &mut Transaction,
        outcome: &mut SaveResults<'_>,
    ) -> Result<Vec<&Entry<'s>>, sqlx::Error> {
        let (mut swapped, mut swaps, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &self.entries {
            match Swap::new(&entry.key, entry.save) {
                Some(swap) if !self.trusting => {
                    swapped.push(entry.at);
                    swaps.push(swap);
                }
                _ => rest.push(entry),
            }
        }
        if !swap::all(transaction, &self.target.cached, self.family, &swaps).await? {
            return Ok(self.entries.iter().collect());
        }
        swapped.into_iter().for_each(|at| outcome.set(at, Saved::Done));
        Ok(rest)
    }

    /// Locks the rows and versions of the entries and returns what they hold.
    async fn find(
        &self,
        transaction: &mut Transaction,
        entries: &[&Entry<'s>],
    ) -> Result<Vec<InDatabase>, sqlx::Error> {
        let mut found = Vec::with_capacity(entries.len());
        for entries in entries.chunks(CHUNK) {
            found.extend(self.lock(transaction, entries.iter().copied()).await?);
        }
        // A row that is not there cannot be locked: another transaction may have made it, and the version that was then
        // waited for. Now that the version is locked, the row is looked at again.
        let doubtful = |&at: &usize| found[at].is_doubtful(entries[at].save);
        let doubtful: Vec<_> = (0..found.len()).filter(doubtful).collect();
        for places in doubtful.chunks(CHUNK) {
            let again = self.lock(transaction, places.iter().map(|&at| entries[at])).await?;
            for (&at, again) in places.iter().zip(again) {
                found[at] = again;
            }
        }
        Ok(found)
    }

    async fn lock<'e>(
        &self,
        transaction: &mut Transaction,
        entries: impl ExactSizeIterator<Item = &'e Entry<'e>> + Send,
    ) -> Result<Vec<InDatabase>, sqlx::Error> {
        let (asked, mut json) = (entries.len(), JsonRows::default());
        for entry in entries {
            self.target.cached.write_id(json.row(), &entry.key, &entry.save.id);
        }
        let query = self.target.cached.lock.query().bind(json.finish()).bind(self.family.number);
        let rows = transaction.fetch(query).await?;
        positions::by_position(&rows, asked, |row| {
            let digits = sqlx::Row::try_get::<Option<String>, _>(row, 1)?;
            let value = digits.map(|digits| digits.parse().map_err(|_| digits));
            Ok(InDatabase { value, version: versions::read(row, 2)? })
        })
    }

    fn step(&self, save: &Save, found: &InDatabase) -> Step {
        let step = match (&found.value, self.target.inserts) {
            (Some(_), _) => Step::Update,
            (None, true) => Step::Insert,
            (None, false) => Step::Skip,
        };
        if self.trusting {
            return step;
        }
        if found.version == Some(save.version) {
            return Step::Leave(Saved::Done);
        }
        let value = match &found.value {
            Some(Ok(value)) => Some(*value),
            Some(Err(digits)) => return Step::Refuse(refusal(save, digits, "it is no signed 64-bit number")),
            None => None,
        };
        let row = Row { value, version: found.version };
        match step {
            // it may have been there
            Step::Skip if row.version == save.known.version => Step::Skip,
            step if row == save.known => step,
            _ => Step::Leave(Saved::Conflict(row)),
        }
    }

    /// Writes the values of entries that are all there, or all not. Returns what the database refused, with its words.
    async fn write<'w>(
        &self,
        transaction: &mut Transaction,
        text: &Text,
        pairs: &'w [Compared<'w, 's>],
    ) -> Result<Vec<(&'w Compared<'w, 's>, String)>, sqlx::Error> {
        let mut halves = Halves::of(pairs);
        while let Some(part) = halves.next() {
            let mut json = JsonRows::default();
            for (entry, _) in part {
                let cells = json.row().number(entry.save.value);
                entry.key.iter().for_each(|segment| segment.write(cells));
            }
            let changed = transaction.execute(text.query().bind(json.finish())).await;
            let result = changed.and_then(|changed| positions::all(part.len(), changed));
            match &result {
                // inserted meanwhile by somebody else: the transaction is begun again, and no row is to blame
                Err(error) if fault::is_duplicate(error) && self.any_came(transaction, part).await? => {
                    return result.map(|()| Vec::new());
                }
                _ => halves.made(part, result)?,
            }
        }
        Ok(halves.refused())
    }

    /// A row that differs by what recounts added was changed by no stranger.
    async fn meet(&self, transaction: &mut Transaction, outcome: &mut SaveResults<'_>) -> Result<(), sqlx::Error> {
        let differs = |entry: &Entry<'s>| match &outcome.saved[entry.at] {
            Some(Saved::Conflict(row)) if row.version == entry.save.known.version => {
                let [found, known] = [row.value, entry.save.known.value].map(|value| i128::from(value.unwrap_or(0)));
                Some((entry.at, *row, (&*entry.save.id, found - known)))
            }
            _ => None,
        };
        let differing: Vec<_> = self.entries.iter().filter_map(differs).collect();
        let differences: Vec<_> = differing.iter().map(|(_, _, difference)| *difference).collect();
        let met = recount::meet(transaction, self.family, &differences).await?;
        for ((at, row, _), _) in differing.iter().zip(met).filter(|(_, met)| *met) {
            outcome.set(*at, Saved::Recounted(*row));
        }
        Ok(())
    }

    /// Whether any row that was not there is there now.
    async fn any_came(&self, transaction: &mut Transaction, pairs: &[Compared<'_, 's>]) -> Result<bool, sqlx::Error> {
        let found = self.lock(transaction, pairs.iter().map(|(entry, _)| *entry)).await?;
        Ok(pairs.iter().zip(found).any(|((_, before), now)| before.value.is_none() && now.value.is_some()))
    }
}

impl UnitOfWork for Saves<'_> {
    type Output = Vec<Saved>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Vec<Saved>, sqlx::Error> {
        let mut outcome = SaveResults::new(self);
        let entries = self.swap(transaction, &mut outcome).await?;
        let found = self.find(transaction, &entries).await?;
        let (mut updates, mut inserts, mut versions) = (Vec::new(), Vec::new(), Versions::default());
        for (&entry, found) in entries.iter().zip(&found) {
            match self.step(entry.save, found) {
                Step::Update => updates.push((entry, found)),
                Step::Insert => inserts.push((entry, found)),
                Step::Skip => {
                    outcome.reject(entry.at, Saved::NoRow, "no such row".to_owned());
                    versions.add(entry.save, found.version);
                }
                Step::Refuse(reason) => outcome.reject(entry.at, Saved::Refused, reason),
                Step::Leave(saved) => outcome.set(entry.at, saved),
            }
        }
        self.meet(transaction, &mut outcome).await?;
        let mut refused = self.write(transaction, &self.target.cached.update, &updates).await?;
        refused.extend(self.write(transaction, &self.target.cached.insert, &inserts).await?);
        for ((entry, _), words) in refused {
            let known = entry.save.known.value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
            outcome.reject(entry.at, Saved::Refused, refusal(entry.save, &known, &words));
        }
        for (entry, found) in updates.iter().chain(&inserts) {
            if outcome.is_open(entry.at) {
                outcome.set(entry.at, Saved::Done);
                versions.add(entry.save, found.version);
            }
        }
        versions.write(transaction, self.family).await?;
        for (at, reason) in &self.strays {
            outcome.reject(*at, Saved::Refused, reason.clone());
        }
        rejects::write(transaction, &outcome.rejected).await?;
        outcome.complete()
    }
}

impl InDatabase {
    /// Whether the row may have been made between the looks at it and at its version.
    fn is_doubtful(&self, save: &Save) -> bool {
        self.value.is_none() && self.version != save.known.version
    }
}

/// Why a value was not written to a row that holds `known`.
fn refusal(save: &Save, known: &str, words: &str) -> String {
    format!("{} ({known} in the row): {words}", save.value)
}

/// What becomes of each save.
struct SaveResults<'s> {
    family: &'s Registered,
    saves: &'s [Save],
    saved: Vec<Option<Saved>>,
    rejected: Vec<Rejected<'s>>,
}

impl<'s> SaveResults<'s> {
    fn new(saves: &Saves<'s>) -> Self {
        let &Saves { family, saves, .. } = saves;
        SaveResults { family, saves, saved: vec![None; saves.len()], rejected: Vec::new() }
    }

    fn is_open(&self, at: usize) -> bool {
        self.saved[at].is_none()
    }

    fn set(&mut self, at: usize, saved: Saved) {
        self.saved[at] = Some(saved);
    }

    /// What would have been added is kept as a reject.
    fn reject(&mut self, at: usize, saved: Saved, reason: String) {
        let save = &self.saves[at];
        let delta = save.value.saturating_sub(save.known.value.unwrap_or(0));
        self.rejected.push(Rejected { origin: Origin::save(self.family, save), id: &save.id, delta, reason });
        self.set(at, saved);
    }

    fn complete(self) -> Result<Vec<Saved>, sqlx::Error> {
        let unaccounted = || sqlx::Error::Protocol(format!("{}: saves are unaccounted for", self.family.family));
        self.saved.into_iter().collect::<Option<_>>().ok_or_else(unaccounted)
    }
}
