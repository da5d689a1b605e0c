//! What a sink operator needs of the thing that it writes to.

use crate::element::{Element, Record};
use crate::fault::Fault;
use tidegate_recovery::Epoch;
use timely::scheduling::SyncActivator;

/// Names one batch until it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A record that the destination refuses for ever.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The batch it belongs to.
    pub ticket: Ticket,
    /// Its place in the batch.
    pub index: usize,
    /// Why.
    pub reason: String,
    /// What the destination refuses.
    pub refusal: Refusal,
}

/// What a destination refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This record (too large, no such partition); it may take others.
    Record,
    /// Everything: it is not there any more. No policy for records drops what it would have taken.
    Everything,
}

/// Where a sink operator writes. All calls come from the worker's thread, none blocks for more than a few
/// milliseconds.
///
/// The operator holds the capability of each batch until its ticket is [`SinkWriter::acknowledged`]: a sink
/// cannot forget it, because it never has it.
pub trait SinkWriter: 'static {
    /// Called once, before the first batch: whoever learns of an acknowledgement wakes the operator with it.
    fn wake_with(&mut self, activator: SyncActivator);

    /// A batch of this epoch follows under this ticket. Only a writer that treats epochs as units needs to know.
    fn open(&mut self, _ticket: Ticket, _epoch: Epoch) {}

    /// Takes elements from the front of `elements`, as many as fit, and returns how many; 0 means full.
    /// `more` elements of the same ticket follow in later calls.
    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault>;

    /// Appends the tickets of which every element is durably written (or was refused), since the last call,
    /// and the records that were refused.
    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault>;

    /// An epoch ends: what waits for company (a linger, a file's sync) need not wait any longer.
    fn flush(&mut self);

    /// Bytes that were taken and are not yet acknowledged.
    fn in_flight_bytes(&self) -> usize;
}

impl<W: SinkWriter + ?Sized> SinkWriter for Box<W> {
    fn wake_with(&mut self, activator: SyncActivator) {
        (**self).wake_with(activator);
    }

    fn open(&mut self, ticket: Ticket, epoch: Epoch) {
        (**self).open(ticket, epoch);
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        (**self).submit(ticket, elements, more)
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault> {
        (**self).acknowledged(tickets, refused)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn in_flight_bytes(&self) -> usize {
        (**self).in_flight_bytes()
    }
}
