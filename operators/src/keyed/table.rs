//! State by key, and which of it changed.

use bytes::Bytes;
use hashbrown::HashTable;
use tidegate_recovery::KeyHash;

/// Values of keys. A look-up costs one probe with the hash that the record came with.
pub(crate) struct KeyTable<V> {
    index: HashTable<u32>,
    slots: Vec<Option<Slot<V>>>,
    free: Vec<u32>,
    dirty: Vec<u32>,
}

/// A key and its value.
pub(crate) struct Slot<V> {
    pub(crate) hash: KeyHash,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: V,
    dirty: bool,
}

impl<V> KeyTable<V> {
    pub(crate) fn new() -> KeyTable<V> {
        KeyTable { index: HashTable::new(), slots: Vec::new(), free: Vec::new(), dirty: Vec::new() }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn find(&self, hash: KeyHash, key: Option<&[u8]>) -> Option<u32> {
        let same = |&place: &u32| {
            self.slots[place as usize]
                .as_ref()
                .is_some_and(|slot| slot.hash == hash && slot.key.as_deref() == key)
        };
        self.index.find(hash.0, same).copied()
    }

    /// The place of a key; a key that is not there comes in with the value that `new` makes.
    pub(crate) fn find_or_insert(
        &mut self,
        hash: KeyHash,
        key: Option<&[u8]>,
        new: impl FnOnce() -> V,
    ) -> u32 {
        if let Some(place) = self.find(hash, key) {
            return place;
        }
        // A copy: a slice of what was read would keep the whole of it in memory.
        let slot = Slot { hash, key: key.map(Bytes::copy_from_slice), value: new(), dirty: false };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = Some(slot);
                place
            }
            None => {
                let place =
                    u32::try_from(self.slots.len()).expect("fewer than four billion keys on one worker");
                self.slots.push(Some(slot));
                place
            }
        };
        let Self { index, slots, .. } = self;
        index.insert_unique(hash.0, place, |&other| {
            slots[other as usize].as_ref().expect("a place in the index is in use").hash.0
        });
        place
    }

    pub(crate) fn get(&self, place: u32) -> Option<&Slot<V>> {
        self.slots.get(place as usize)?.as_ref()
    }

    pub(crate) fn at(&self, place: u32) -> &Slot<V> {
        self.slots[place as usize].as_ref().expect("a place in use")
    }

    pub(crate) fn at_mut(&mut self, place: u32) -> &mut Slot<V> {
        self.slots[place as usize].as_mut().expect("a place in use")
    }

    pub(crate) fn remove(&mut self, place: u32) -> Slot<V> {
        let slot = self.slots[place as usize].take().expect("a place in use");
        let entry = self.index.find_entry(slot.hash.0, |&other| other == place);
        entry.expect("every place in use is in the index").remove();
        self.free.push(place);
        slot
    }

    /// The value at `place` changed.
    pub(crate) fn touch(&mut self, place: u32) {
        let slot = self.slots[place as usize].as_mut().expect("a place in use");
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.push(place);
        }
    }

    /// Whether the value at `place` changed since the changes were visited.
    pub(crate) fn is_dirty(&self, place: u32) -> bool {
        self.at(place).dirty
    }

    /// Visits every key whose value changed since the last call; a key is removed when `visit` says so.
    pub(crate) fn visit_changed(&mut self, mut visit: impl FnMut(&mut Slot<V>) -> Keep) {
        for place in std::mem::take(&mut self.dirty) {
            // A place that was given up, and perhaps taken again, may be listed twice.
            let Some(slot) = self.slots[place as usize].as_mut().filter(|slot| slot.dirty) else {
                continue;
            };
            slot.dirty = false;
            if visit(slot) == Keep::No {
                self.remove(place);
            }
        }
    }
}

/// Whether a key stays in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    No,
}
