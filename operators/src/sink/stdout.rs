//! A sink that writes one line per value on the standard output.
//!
//! A line counts as written when the pipe or terminal has taken it. Lines of several workers are not mixed. A
//! closed standard output ends the run with the class of a failed disk (74).

use super::lines::{LineTarget, LineWriter};
use crate::fault::Fault;
use std::io::{self, Write as _};

/// Starts the thread that writes to the standard output for a sink.
pub fn writer() -> Result<LineWriter, Fault> {
    LineWriter::start(Stdout)
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
