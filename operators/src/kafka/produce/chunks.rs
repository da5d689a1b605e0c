//! The books of a producer: which record of which ticket a delivery report is about.

use crate::sink::Ticket;
use std::collections::HashMap;

/// How far a ticket is.
#[derive(Default)]
pub(super) struct Progress {
    /// Records that were taken so far.
    pub(super) taken: usize,
    /// Of those, how many are not yet decided.
    pub(super) open: usize,
    /// No more elements follow.
    pub(super) complete: bool,
}

/// Records of one call of `submit`: a tag names the chunk and the place in it.
pub(super) struct Chunk {
    pub(super) writer: usize,
    pub(super) ticket: Ticket,
    pub(super) first: usize,
    pub(super) open: usize,
    pub(super) header_bytes: usize,
    /// By place: the library does not tell the timestamp of a record that was not written.
    pub(super) timestamps: Vec<i64>,
}

/// Chunks by slot; slots of finished ones are used again.
#[derive(Default)]
pub(super) struct Chunks {
    pub(super) slots: Vec<Chunk>,
    pub(super) free: Vec<u32>,
}

/// A tag is slot and place.
pub(super) const PLACE_BITS: u32 = 32;
pub(super) const PLACE_MASK: usize = (1 << PLACE_BITS) - 1;

impl Chunks {
    pub(super) fn insert(&mut self, chunk: Chunk) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                let timestamps = std::mem::take(&mut self.slots[slot as usize].timestamps);
                self.slots[slot as usize] = Chunk { timestamps, ..chunk };
                self.slots[slot as usize].timestamps.clear();
                slot
            }
            None => {
                self.slots.push(chunk);
                u32::try_from(self.slots.len() - 1).expect("records in flight are bounded far below")
            }
        }
    }
}

/// One chunk of the ticket is decided; returns whether the whole ticket now is.
pub(super) fn chunk_decided(tickets: &mut HashMap<Ticket, Progress>, ticket: Ticket) -> bool {
    let progress = tickets.get_mut(&ticket).expect("a ticket is kept while it has chunks");
    progress.open -= 1;
    let done = progress.complete && progress.open == 0;
    if done {
        tickets.remove(&ticket);
    }
    done
}
