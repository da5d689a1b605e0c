//! Makes a segment in memory, frame by frame.
//!
//! A frame is cut at a row's end once it holds [`FRAME_BYTES`]. A frame that does not shrink is stored as it is;
//! after one such frame the next few are not even tried, since rows of one flow are alike. With much to do, frames are
//! compressed and checked on a thread of their own while the caller goes on with its rows.

use super::segment::{FRAME_HEAD, FrameRef, SegmentHead, frame_check};
use super::{Kind, append_sealed, head};
use crate::names::PartName;
use crate::{SegmentRef, StepId, StepNumber, StoreError};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// Rows of one frame, before compression, are cut at the first row's end past this.
pub(crate) const FRAME_BYTES: usize = 256 * 1024;
/// After a frame that did not shrink, this many are stored without trying.
const UNTRIED: u32 = 15;
/// Frames that wait for the thread that compresses them.
const FRAMES_WAITING: usize = 8;

/// Builds a segment in memory.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    name: PartName,
    rows: Vec<u8>,
    row_bytes: u64,
    encoder: Place,
}

/// Where frames are encoded.
#[derive(Debug)]
enum Place {
    Here(Encoder),
    Thread { frames: SyncSender<Vec<u8>>, spare: Receiver<Vec<u8>>, thread: JoinHandle<Encoder> },
}

/// A segment that was built.
#[derive(Debug)]
pub(crate) struct BuiltSegment {
    /// The bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// What a record says of it.
    pub(crate) segment: SegmentRef,
    /// Where its frames lie.
    pub(crate) frames: Vec<FrameRef>,
}

impl SegmentBuilder {
    /// For a segment of this name; `room` is an empty buffer whose memory can be used again.
    pub(crate) fn new(
        name: PartName,
        steps: Vec<(StepId, u32)>,
        room: Vec<u8>,
    ) -> Result<SegmentBuilder, StoreError> {
        debug_assert!(room.is_empty(), "only the memory is used again");
        let mut bytes = room;
        bytes.extend_from_slice(&head(Kind::Segment));
        let PartName { epoch, generation, process } = name;
        append_sealed(&mut bytes, &SegmentHead { epoch, generation, process, steps })?;
        let encoder = Encoder::new(bytes);
        Ok(SegmentBuilder { name, rows: Vec::new(), row_bytes: 0, encoder: Place::Here(encoder) })
    }

    /// Encodes frames on a thread of their own from now on.
    pub(crate) fn in_background(mut self) -> SegmentBuilder {
        if let Place::Here(mut encoder) = self.encoder {
            let (frames, work) = sync_channel::<Vec<u8>>(FRAMES_WAITING);
            let (done, spare) = channel();
            let thread = std::thread::spawn(move || {
                while let Ok(mut rows) = work.recv() {
                    encoder.frame(&rows);
                    rows.clear();
                    // Nobody needs the buffer after the last frame.
                    let _ = done.send(rows);
                }
                encoder
            });
            self.encoder = Place::Thread { frames, spare, thread };
        }
        self
    }

    /// Appends a whole encoded row.
    #[inline]
    pub(crate) fn push(&mut self, row: &[u8]) -> Result<(), StoreError> {
        self.rows.extend_from_slice(row);
        if self.rows.len() >= FRAME_BYTES { self.cut() } else { Ok(()) }
    }

    /// Appends a whole encoded row under another step number.
    pub(crate) fn push_as(&mut self, row: &[u8], step: StepNumber) -> Result<(), StoreError> {
        let start = self.rows.len();
        self.rows.extend_from_slice(row);
        // See the row's framing in `rows.rs`: tag, then step.
        self.rows[start + 1..start + 3].copy_from_slice(&step.0.to_le_bytes());
        if self.rows.len() >= FRAME_BYTES { self.cut() } else { Ok(()) }
    }

    /// Bytes of rows so far.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes + self.rows.len() as u64
    }

    fn cut(&mut self) -> Result<(), StoreError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.row_bytes += self.rows.len() as u64;
        match &mut self.encoder {
            Place::Here(encoder) => {
                encoder.frame(&self.rows);
                self.rows.clear();
                Ok(())
            }
            Place::Thread { frames, spare, .. } => {
                let next = spare.try_recv().unwrap_or_default();
                let rows = std::mem::replace(&mut self.rows, next);
                frames.send(rows).map_err(|_| encoder_gone())
            }
        }
    }

    /// The whole segment.
    pub(crate) fn finish(mut self) -> Result<BuiltSegment, StoreError> {
        self.cut()?;
        let Encoder { bytes, frames, .. } = match self.encoder {
            Place::Here(encoder) => encoder,
            Place::Thread { frames, thread, .. } => {
                drop(frames);
                thread.join().map_err(|_| encoder_gone())?
            }
        };
        let segment = SegmentRef {
            epoch: self.name.epoch,
            generation: self.name.generation,
            process: self.name.process,
            length: bytes.len() as u64,
            checksum: crc32fast::hash(&bytes),
        };
        Ok(BuiltSegment { bytes, segment, frames })
    }
}

fn encoder_gone() -> StoreError {
    StoreError::Internal("the thread that compresses a segment panicked".to_owned())
}

/// Appends frames to a file's head.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) bytes: Vec<u8>,
    frames: Vec<FrameRef>,
    untried: u32,
}

impl Encoder {
    pub(super) fn new(bytes: Vec<u8>) -> Encoder {
        Encoder { bytes, frames: Vec::new(), untried: 0 }
    }

    pub(super) fn frame(&mut self, rows: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; FRAME_HEAD]);
        let mut stored = rows.len();
        if self.untried == 0 {
            let room = lz4_flex::block::get_maximum_output_size(rows.len());
            self.bytes.resize(start + FRAME_HEAD + room, 0);
            let out = &mut self.bytes[start + FRAME_HEAD..];
            stored = lz4_flex::block::compress_into(rows, out)
                .expect("the output has the size that the compressor asked for");
            self.bytes.truncate(start + FRAME_HEAD + stored);
            if stored >= rows.len() - rows.len() / 16 {
                self.untried = UNTRIED;
                self.bytes.truncate(start + FRAME_HEAD);
                stored = rows.len();
            }
        } else {
            self.untried -= 1;
        }
        if stored == rows.len() {
            self.bytes.extend_from_slice(rows);
        }
        let frame = &mut self.bytes[start..];
        frame[..4].copy_from_slice(&(stored as u32).to_le_bytes());
        frame[4..8].copy_from_slice(&(rows.len() as u32).to_le_bytes());
        let check = frame_check(&frame[..8], &frame[FRAME_HEAD..]);
        frame[8..12].copy_from_slice(&check.to_le_bytes());
        self.frames.push(FrameRef {
            offset: start as u64,
            stored: stored as u32,
            rows: rows.len() as u32,
            check,
        });
    }
}
