//! [`StdoutWriter`]: one line per value on the standard output.
//!
//! A line counts as written when the pipe or terminal has taken it. Lines of several workers are not mixed. A
//! closed standard output ends the run with the class of a failed disk (74).

use super::lines::{LineTarget, LineWriter};
use crate::element::{Element, Record};
use crate::fault::Fault;
use crate::sink::{Refused, SinkWriter, Ticket};
use std::io::{self, Write as _};
use timely::scheduling::SyncActivator;

/// Writes values to the standard output, one line each; an absent value is no line.
pub struct StdoutWriter(LineWriter);

impl StdoutWriter {
    /// Starts the thread that writes.
    pub fn start() -> Result<StdoutWriter, Fault> {
        LineWriter::start(Stdout).map(StdoutWriter)
    }
}

struct Stdout;

impl LineTarget for Stdout {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(lines)
    }

    fn sync(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }

    fn name(&self) -> String {
        "the standard output".to_owned()
    }
}

impl SinkWriter for StdoutWriter {
    fn wake_with(&mut self, activator: SyncActivator) {
        self.0.wake_with(activator);
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        self.0.submit(ticket, elements, more)
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault> {
        self.0.acknowledged(tickets, refused)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn in_flight_bytes(&self) -> usize {
        self.0.in_flight_bytes()
    }
}
