//! The threads of a control connection: a writer that beats, and a reader that notes signs of life.
//!
//! A blocked peer blocks its own writer only. Whatever arrives counts as a sign of life, so a long message
//! does not make its sender look silent.

use crate::liveness::beat_interval;
use crate::mesh::{Frame, Heard, Seated, Shared};
use crate::wire::{Frames, Message};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;
use tidegate_recovery::ProcessIndex;

/// What one control connection's threads need.
pub(crate) struct LinkThreads {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: ProcessIndex,
    pub(crate) seated: Seated,
    pub(crate) stream: TcpStream,
}

impl LinkThreads {
    /// Starts the writer and reads until the connection is gone. Called on the reader's thread.
    pub(crate) fn run(self) {
        let LinkThreads { shared, peer, seated: Seated { id, heard, frames }, stream } = self;
        let _watch = shared.supervisor.watch_thread(format!("the reader of process {peer}"));
        let prepared = (|| {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(shared.timeouts.peer))?;
            stream.try_clone()
        })();
        let writing = match prepared {
            Ok(writing) => writing,
            Err(error) => return shared.lost(peer, id, &format!("its connection broke ({error})")),
        };
        shared.writer_starts();
        let writer = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("beat-{peer}")).spawn(move || {
                let _watch = shared.supervisor.watch_thread(format!("the heartbeat to process {peer}"));
                let ended = write(&shared, &writing, &frames);
                shared.writer_ends();
                if let Err(error) = ended {
                    shared.lost(peer, id, &format!("nothing can be written to it ({error})"));
                }
            })
        };
        if let Err(error) = writer {
            shared.writer_ends();
            return shared.lost(peer, id, &format!("no thread can be started for its heartbeat ({error})"));
        }
        let why = read(&shared, peer, id, &heard, &stream);
        shared.lost(peer, id, &why);
    }
}

/// Writes frames as they come, and a beat when it is time for one. Ends after the last frame, or when the
/// link was given up.
fn write(shared: &Shared, mut stream: &TcpStream, frames: &Receiver<Frame>) -> std::io::Result<()> {
    let interval = beat_interval(shared.timeouts.peer);
    let beat = Message::Beat.frame().map_err(std::io::Error::other)?;
    let mut next_beat = Instant::now();
    loop {
        match frames.recv_timeout(next_beat.saturating_duration_since(Instant::now())) {
            Ok(Frame { bytes, last }) => {
                stream.write_all(&bytes)?;
                if last {
                    return stream.shutdown(Shutdown::Write);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                stream.write_all(&beat)?;
                next_beat = Instant::now() + interval;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Reads messages until the connection ends and says how it ended.
fn read(shared: &Shared, peer: ProcessIndex, id: u64, heard: &Heard, mut stream: &TcpStream) -> String {
    let mut frames = Frames::default();
    let mut buffer = [0; 16 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return "its connection was closed without a goodbye".into(),
            Ok(read) => {
                shared.heard(heard);
                frames.push(&buffer[..read]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return format!("its connection broke ({error})"),
        }
        loop {
            match frames.next() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if !shared.received(peer, id, message) {
                        return "another connection took its place".into();
                    }
                }
                Err(what) => return what,
            }
        }
    }
}
