//! Where the newest version of every row lies: a compact index of a process's own live rows.
//!
//! A row is found by the 128-bit hash of its step and key, seeded anew in every process, and its sub-key. Nearly every key has
//! one row, with a short sub-key: it costs 40 bytes and no allocation of its own. The index is never written to disk; a
//! restore builds it.

use crate::StepNumber;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Where a row lies, and how long it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Number of the segment in this process's list.
    pub(crate) segment: u32,
    /// Bytes of the encoded row.
    pub(crate) bytes: u32,
}

/// Hash of a step and a key: wide enough that two keys never share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId([u64; 2]);

impl Hash for KeyId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// For keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only whole hashes are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

pub(crate) type KeyMap<V> = HashMap<KeyId, V, BuildHasherDefault<AsIs>>;

const INLINE: usize = 15;
const GROUP: u8 = u8::MAX;
/// Rows of one key up to which a sorted list beats a tree.
const FEW: usize = 48;

/// One row with a short sub-key, or the number of a group.
#[derive(Clone, Copy, Debug)]
struct Slot {
    length: u8,
    sub: [u8; INLINE],
    location: Location,
}

impl Slot {
    fn row(sub: &[u8], location: Location) -> Option<Slot> {
        let mut inline = [0; INLINE];
        inline.get_mut(..sub.len())?.copy_from_slice(sub);
        Some(Slot { length: sub.len() as u8, sub: inline, location })
    }

    fn group(number: usize) -> Slot {
        let location = Location { segment: number as u32, bytes: 0 };
        Slot { length: GROUP, sub: [0; INLINE], location }
    }

    fn sub(&self) -> Option<&[u8]> {
        self.sub.get(..usize::from(self.length))
    }
}

/// The rows of a key that has several, or one with a long sub-key.
#[derive(Clone, Debug)]
enum Group {
    /// Ascending by sub-key.
    Few(Vec<(Box<[u8]>, Location)>),
    Many(BTreeMap<Box<[u8]>, Location>),
}

impl Group {
    fn put(&mut self, sub: &[u8], location: Location) -> Option<Location> {
        match self {
            Group::Few(rows) => match rows.binary_search_by(|(other, _)| (**other).cmp(sub)) {
                Ok(at) => Some(std::mem::replace(&mut rows[at].1, location)),
                Err(at) if rows.len() < FEW => {
                    rows.insert(at, (sub.into(), location));
                    None
                }
                Err(_) => {
                    let mut many: BTreeMap<_, _> = std::mem::take(rows).into_iter().collect();
                    many.insert(sub.into(), location);
                    *self = Group::Many(many);
                    None
                }
            },
            Group::Many(rows) => rows.insert(sub.into(), location),
        }
    }

    fn get(&self, sub: &[u8]) -> Option<Location> {
        match self {
            Group::Few(rows) => {
                let at = rows.binary_search_by(|(other, _)| (**other).cmp(sub)).ok()?;
                Some(rows[at].1)
            }
            Group::Many(rows) => rows.get(sub).copied(),
        }
    }

    fn remove(&mut self, sub: &[u8]) -> Option<Location> {
        match self {
            Group::Few(rows) => {
                let at = rows.binary_search_by(|(other, _)| (**other).cmp(sub)).ok()?;
                Some(rows.remove(at).1)
            }
            Group::Many(rows) => rows.remove(sub),
        }
    }

    fn remove_prefix(&mut self, prefix: &[u8], mut gone: impl FnMut(Location)) {
        match self {
            Group::Few(rows) => rows.retain(|(sub, location)| {
                let covered = sub.starts_with(prefix);
                if covered {
                    gone(*location);
                }
                !covered
            }),
            Group::Many(rows) => {
                let range =
                    rows.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
                let covered: Vec<Box<[u8]>> = range
                    .take_while(|(sub, _)| sub.starts_with(prefix))
                    .map(|(sub, _)| sub.clone())
                    .collect();
                for sub in covered {
                    if let Some(location) = rows.remove(&sub) {
                        gone(location);
                    }
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Group::Few(rows) => rows.is_empty(),
            Group::Many(rows) => rows.is_empty(),
        }
    }
}

/// The live rows of a process.
#[derive(Clone, Debug)]
pub(crate) struct LiveIndex {
    seed: u64,
    keys: KeyMap<Slot>,
    groups: Vec<Group>,
    free: Vec<usize>,
}

impl LiveIndex {
    /// An empty index; `seed` should differ from process to process, so that nobody can make two keys meet.
    pub(crate) fn new(seed: u64) -> LiveIndex {
        LiveIndex { seed, keys: KeyMap::default(), groups: Vec::new(), free: Vec::new() }
    }

    /// The id of a step's key.
    #[inline]
    pub(crate) fn id(&self, step: StepNumber, key: &[u8]) -> KeyId {
        key_id(self.seed, step, key)
    }

    /// The seed, for threads that compute ids.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Makes room for this many more keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.keys.reserve(keys);
    }

    /// About where the index, as large as it is now, keeps each key, as a number below 2³²: what is done in the order of places
    /// finds its memory near.
    pub(crate) fn places(&self) -> impl Fn(KeyId) -> u64 + use<> {
        // hashbrown fills at most 7/8 of a power of two of slots and begins to look at the low bits of the hash.
        let slots = (self.keys.capacity() as u64 / 7 * 8).next_power_of_two();
        move |id| id.0[0] & (slots - 1) & u64::from(u32::MAX)
    }

    /// The row lies there now; returns where it lay.
    #[inline]
    pub(crate) fn put(&mut self, id: KeyId, sub: &[u8], location: Location) -> Option<Location> {
        match self.keys.entry(id) {
            MapEntry::Occupied(mut entry) => {
                let slot = entry.get_mut();
                match slot.sub() {
                    Some(found) if found == sub => Some(std::mem::replace(&mut slot.location, location)),
                    Some(found) => {
                        let mut group = Group::Few(vec![(found.into(), slot.location)]);
                        group.put(sub, location);
                        *slot = Slot::group(keep(&mut self.groups, &mut self.free, group));
                        None
                    }
                    None => self.groups[slot.location.segment as usize].put(sub, location),
                }
            }
            MapEntry::Vacant(entry) => {
                let slot = Slot::row(sub, location).unwrap_or_else(|| {
                    let group = Group::Few(vec![(sub.into(), location)]);
                    Slot::group(keep(&mut self.groups, &mut self.free, group))
                });
                entry.insert(slot);
                None
            }
        }
    }

    /// Where the row lies.
    #[inline]
    pub(crate) fn get(&self, id: KeyId, sub: &[u8]) -> Option<Location> {
        let slot = self.keys.get(&id)?;
        match slot.sub() {
            Some(found) => (found == sub).then_some(slot.location),
            None => self.groups[slot.location.segment as usize].get(sub),
        }
    }

    /// The row is gone; returns where it lay.
    pub(crate) fn remove(&mut self, id: KeyId, sub: &[u8]) -> Option<Location> {
        let slot = *self.keys.get(&id)?;
        match slot.sub() {
            Some(found) if found == sub => {
                self.keys.remove(&id);
                Some(slot.location)
            }
            Some(_) => None,
            None => {
                let number = slot.location.segment as usize;
                let removed = self.groups[number].remove(sub);
                self.drop_empty(id, number);
                removed
            }
        }
    }

    /// All rows of the key whose sub-key starts with `prefix` are gone.
    pub(crate) fn remove_prefix(&mut self, id: KeyId, prefix: &[u8], mut gone: impl FnMut(Location)) {
        let Some(slot) = self.keys.get(&id).copied() else { return };
        match slot.sub() {
            Some(found) if found.starts_with(prefix) => {
                self.keys.remove(&id);
                gone(slot.location);
            }
            Some(_) => {}
            None => {
                let number = slot.location.segment as usize;
                self.groups[number].remove_prefix(prefix, gone);
                self.drop_empty(id, number);
            }
        }
    }

    fn drop_empty(&mut self, id: KeyId, number: usize) {
        if self.groups[number].is_empty() {
            self.groups[number] = Group::Few(Vec::new());
            self.free.push(number);
            self.keys.remove(&id);
        }
    }
}

fn keep(groups: &mut Vec<Group>, free: &mut Vec<usize>, group: Group) -> usize {
    match free.pop() {
        Some(number) => {
            groups[number] = group;
            number
        }
        None => {
            groups.push(group);
            groups.len() - 1
        }
    }
}

/// The id of a step's key under a seed.
#[inline]
pub(crate) fn key_id(seed: u64, step: StepNumber, key: &[u8]) -> KeyId {
    let seed = seed ^ u64::from(step.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = xxhash_rust::xxh3::xxh3_128_with_seed(key, seed);
    KeyId([hash as u64, (hash >> 64) as u64])
}
