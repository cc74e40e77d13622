//! The keys with their content and times to live.

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub type Bytes = Vec<u8>;

/// The text of an error reply.
pub type Refusal = String;

pub type Set = BTreeSet<Bytes>;

/// A hash of up to this number of fields is scanned at once, as Redis does with small ones.
const SMALL: usize = 128;

/// The fields of a hash. They are ordered by a hash of their names, which a scan's cursor counts
/// through: a field that stays in the hash is returned, whatever else is added or deleted meanwhile.
#[derive(Default)]
pub struct Hash {
    fields: BTreeMap<(u32, Bytes), Field>,
    /// The number of fields that were ever added.
    added: u64,
}

struct Field {
    /// The place of the field in the order of addition.
    place: u64,
    value: Bytes,
}

/// The scores of a sorted set by member.
#[derive(Default)]
pub struct SortedSet(pub BTreeMap<Bytes, f64>);

pub enum Content {
    String(Bytes),
    Hash(Hash),
    Set(Set),
    SortedSet(SortedSet),
}

/// The content of keys of one type.
pub trait OfType: Default {
    fn of(content: &mut Content) -> Option<&mut Self>;
    fn content(self) -> Content;
}

macro_rules! of_type {
    ($name:ident) => {
        impl OfType for $name {
            fn of(content: &mut Content) -> Option<&mut Self> {
                match content {
                    Content::$name(own) => Some(own),
                    _ => None,
                }
            }

            fn content(self) -> Content {
                Content::$name(self)
            }
        }
    };
}

of_type!(Hash);
of_type!(Set);
of_type!(SortedSet);

impl Hash {
    fn key(field: &[u8]) -> (u32, Bytes) {
        (crc32fast::hash(field), field.to_vec())
    }

    pub fn get(&self, field: &[u8]) -> Option<&Bytes> {
        self.fields.get(&Hash::key(field)).map(|field| &field.value)
    }

    /// Returns whether the field is new.
    pub fn insert(&mut self, field: &[u8], value: Bytes) -> bool {
        let place = self.added;
        self.added += 1;
        let key = Hash::key(field);
        if let Some(known) = self.fields.get_mut(&key) {
            known.value = value;
            return false;
        }
        self.fields.insert(key, Field { place, value });
        true
    }

    pub fn remove(&mut self, field: &[u8]) -> bool {
        self.fields.remove(&Hash::key(field)).is_some()
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns the fields with their values in the order of addition.
    pub fn pairs(&self) -> Vec<(&Bytes, &Bytes)> {
        let mut fields: Vec<_> = self.fields.iter().collect();
        fields.sort_by_key(|(_, field)| field.place);
        fields
            .into_iter()
            .map(|((_, name), field)| (name, &field.value))
            .collect()
    }

    /// Returns about `count` fields from the cursor on, and the next cursor, which is 0 at the end.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<(&Bytes, &Bytes)>) {
        if self.len() <= SMALL {
            return (0, self.pairs());
        }
        let (mut page, mut last) = (Vec::new(), None);
        for ((hash, name), field) in &self.fields {
            let hash = u64::from(*hash);
            if hash < cursor {
                continue;
            }
            // fields with the same hash are on one page
            if page.len() >= count && last != Some(hash) {
                return (hash, page);
            }
            page.push((name, &field.value));
            last = Some(hash);
        }
        (0, page)
    }
}

impl SortedSet {
    /// Returns the members in the order of their scores.
    pub fn sorted(&self) -> Vec<(f64, &Bytes)> {
        let mut sorted: Vec<_> = self
            .0
            .iter()
            .map(|(member, score)| (*score, member))
            .collect();
        sorted.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(other.1)));
        sorted
    }
}

impl Content {
    fn is_empty(&self) -> bool {
        match self {
            Content::String(_) => false,
            Content::Hash(hash) => hash.fields.is_empty(),
            Content::Set(members) => members.is_empty(),
            Content::SortedSet(members) => members.0.is_empty(),
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Content::String(_) => "string",
            Content::Hash(_) => "hash",
            Content::Set(_) => "set",
            Content::SortedSet(_) => "zset",
        }
    }
}

pub struct Entry {
    pub content: Content,
    /// The end of the key's life in Unix milliseconds.
    pub expires_at: Option<i64>,
}

#[derive(Default)]
pub struct Keyspace {
    entries: HashMap<Bytes, Entry>,
    /// The time in Unix microseconds. It stands still during a command or script.
    pub now_us: i64,
}

impl Keyspace {
    pub fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    pub fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now_ms();
        let is_over = |entry: &Entry| entry.expires_at.is_some_and(|at| at <= now);
        if self.entries.get(key).is_some_and(is_over) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    fn content<T: OfType>(&mut self, key: &[u8]) -> Result<Option<&mut T>, Refusal> {
        let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let Some(entry) = self.entry(key) else {
            return Ok(None);
        };
        match T::of(&mut entry.content) {
            Some(content) => Ok(Some(content)),
            None => Err(wrong_type.to_owned()),
        }
    }

    /// Reads the content of a key, which is empty if there is no such key.
    pub fn read<T: OfType, R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&T) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        match self.content(key)? {
            Some(content) => read(content),
            None => read(&T::default()),
        }
    }

    /// Changes the content of a key. A key without content does not exist.
    pub fn change<T: OfType, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        if let Some(known) = self.content(key)? {
            let result = change(known);
            if self
                .entry(key)
                .is_some_and(|entry| entry.content.is_empty())
            {
                self.entries.remove(key);
            }
            return result;
        }
        let mut new = T::default();
        let result = change(&mut new);
        let content = new.content();
        if !content.is_empty() {
            self.insert(key, content);
        }
        result
    }

    pub fn insert(&mut self, key: &[u8], content: Content) {
        let entry = Entry {
            content,
            expires_at: None,
        };
        self.entries.insert(key.to_vec(), entry);
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        self.entry(key)?;
        self.entries.remove(key)
    }

    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Refusal> {
        let entry = self.remove(from).ok_or("ERR no such key")?;
        self.entries.insert(to.to_vec(), entry);
        Ok(())
    }

    pub fn keys(&mut self) -> Vec<Bytes> {
        let keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.into_iter()
            .filter(|key| self.entry(key).is_some())
            .collect()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
