//! A segment: the rows of one commit epoch and process, in compressed and checksummed frames.
//!
//! A frame is cut at a row's end once it holds [`FRAME_BYTES`]. A frame that does not shrink is stored as it is;
//! after one such frame the next few are not even tried, since rows of one flow are alike.

use super::{HEAD, Kind, append_sealed, check_head, head, read_sealed, u32_at};
use crate::names::{Name, SegmentName};
use crate::{Epoch, Generation, ProcessIndex, SegmentRef, StepId, StepNumber, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Rows of one frame, before compression, are cut at the first row's end past this.
pub(crate) const FRAME_BYTES: usize = 256 * 1024;
/// Length of a frame's head: stored length, row bytes, checksum.
pub(crate) const FRAME_HEAD: usize = 12;
/// A frame's row bytes are at most this: one row is at most 1 GiB.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// After a frame that did not shrink, this many are stored without trying.
const UNTRIED: u32 = 15;

/// What stands in front of a segment's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHead {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) process: ProcessIndex,
    /// The steps that the rows' numbers mean, and the version of their rows.
    pub(crate) steps: Vec<(StepId, u32)>,
}

/// Builds a segment in memory, frame by frame.
#[derive(Debug)]
pub(crate) struct SegmentBuilder {
    name: SegmentName,
    bytes: Vec<u8>,
    rows: Vec<u8>,
    row_bytes: u64,
    untried: u32,
}

impl SegmentBuilder {
    pub(crate) fn new(name: SegmentName, steps: Vec<(StepId, u32)>) -> Result<SegmentBuilder, StoreError> {
        let mut bytes = head(Kind::Segment).to_vec();
        let SegmentName { epoch, generation, process } = name;
        append_sealed(&mut bytes, &SegmentHead { epoch, generation, process, steps })?;
        Ok(SegmentBuilder {
            name,
            bytes,
            rows: Vec::with_capacity(FRAME_BYTES + 4096),
            row_bytes: 0,
            untried: 0,
        })
    }

    /// Appends whole encoded rows.
    #[inline]
    pub(crate) fn push(&mut self, row: &[u8]) {
        self.rows.extend_from_slice(row);
        if self.rows.len() >= FRAME_BYTES {
            self.cut();
        }
    }

    /// Appends a whole encoded row under another step number.
    pub(crate) fn push_as(&mut self, row: &[u8], step: StepNumber) {
        let start = self.rows.len();
        self.rows.extend_from_slice(row);
        // See the row's framing in `rows.rs`: tag, then step.
        self.rows[start + 1..start + 3].copy_from_slice(&step.0.to_le_bytes());
        if self.rows.len() >= FRAME_BYTES {
            self.cut();
        }
    }

    /// Bytes of rows so far.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes + self.rows.len() as u64
    }

    fn cut(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        self.row_bytes += self.rows.len() as u64;
        let start = self.bytes.len();
        let rows = self.rows.len();
        self.bytes.resize(start + FRAME_HEAD, 0);
        let mut stored = rows;
        if self.untried == 0 {
            let room = lz4_flex::block::get_maximum_output_size(rows);
            self.bytes.resize(start + FRAME_HEAD + room, 0);
            let out = &mut self.bytes[start + FRAME_HEAD..];
            stored = lz4_flex::block::compress_into(&self.rows, out)
                .expect("the output has the size that the compressor asked for");
            self.bytes.truncate(start + FRAME_HEAD + stored);
            if stored >= rows - rows / 16 {
                self.untried = UNTRIED;
                self.bytes.truncate(start + FRAME_HEAD);
                stored = rows;
            }
        } else {
            self.untried -= 1;
        }
        if stored == rows {
            self.bytes.extend_from_slice(&self.rows);
        }
        self.rows.clear();
        let frame = &mut self.bytes[start..];
        frame[..4].copy_from_slice(&(stored as u32).to_le_bytes());
        frame[4..8].copy_from_slice(&(rows as u32).to_le_bytes());
        let check = frame_check(&frame[..8], &frame[FRAME_HEAD..]);
        frame[8..12].copy_from_slice(&check.to_le_bytes());
    }

    /// The bytes of the file, and what a record says of it.
    pub(crate) fn finish(mut self) -> (Vec<u8>, SegmentRef) {
        self.cut();
        let segment = SegmentRef {
            epoch: self.name.epoch,
            generation: self.name.generation,
            process: self.name.process,
            length: self.bytes.len() as u64,
            checksum: crc32fast::hash(&self.bytes),
        };
        (self.bytes, segment)
    }
}

/// Where a frame lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    pub(crate) offset: u64,
    /// Bytes in the file, without the frame's head.
    pub(crate) stored: u32,
    /// Bytes of rows.
    pub(crate) rows: u32,
    check: u32,
}

/// A segment file that was read whole: its head, and where its frames lie.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) file: String,
    pub(crate) head: SegmentHead,
    pub(crate) frames: Vec<FrameRef>,
    pub(crate) bytes: Bytes,
}

impl SegmentFile {
    /// Checks the bytes of a segment against what the record says of it, and finds its frames.
    pub(crate) fn open(segment: &SegmentRef, bytes: Vec<u8>) -> Result<SegmentFile, StoreError> {
        let name = SegmentName::from(segment);
        let file = Name::Segment(name).to_string();
        if bytes.len() as u64 != segment.length {
            let (at, found) = (bytes.len().min(segment.length as usize), bytes.len());
            let what = format!("it has {found} bytes, the record says {}", segment.length);
            return Err(StoreError::damaged(&file, at, what));
        }
        let opened = SegmentFile::parse(&file, name, bytes)?;
        // The parts were checked one by one, so that the error names the place; the whole is what the record named.
        if crc32fast::hash(&opened.bytes) != segment.checksum {
            return Err(StoreError::damaged(&file, 0, "it is not the file that the record names"));
        }
        Ok(opened)
    }

    /// Like [`SegmentFile::open`], for a file that no record names.
    pub(crate) fn parse(file: &str, name: SegmentName, bytes: Vec<u8>) -> Result<SegmentFile, StoreError> {
        check_head(file, &bytes, Kind::Segment)?;
        let (head, mut at): (SegmentHead, usize) = read_sealed(file, &bytes, HEAD)?;
        let found = SegmentName { epoch: head.epoch, generation: head.generation, process: head.process };
        if found != name {
            let what = format!("it is {}, under another's name", Name::Segment(found));
            return Err(StoreError::damaged(file, HEAD, what));
        }
        let mut frames = Vec::new();
        while at < bytes.len() {
            let Some(frame) = bytes.get(at..at + FRAME_HEAD) else {
                return Err(StoreError::damaged(file, at, "the file ends inside a frame's head"));
            };
            let (stored, rows, check) = (u32_at(frame, 0), u32_at(frame, 4), u32_at(frame, 8));
            let start = at + FRAME_HEAD;
            let Some(body) = bytes.get(start..start + stored as usize) else {
                return Err(StoreError::damaged(file, at, "the file ends inside a frame"));
            };
            if frame_check(&frame[..8], body) != check {
                return Err(StoreError::damaged(file, at, "the checksum of the frame there does not fit"));
            }
            frames.push(FrameRef { offset: at as u64, stored, rows, check });
            at = start + stored as usize;
        }
        Ok(SegmentFile { file: file.to_owned(), head, frames, bytes: Bytes::from(bytes) })
    }

    /// The rows of a frame. A frame that was stored as it is costs no copy.
    pub(crate) fn rows(&self, frame: &FrameRef) -> Result<Bytes, StoreError> {
        let start = frame.offset as usize + FRAME_HEAD;
        let stored = self.bytes.slice(start..start + frame.stored as usize);
        expand(&self.file, frame, stored)
    }
}

/// Checks a frame that was read alone, with its head, and returns its rows.
pub(crate) fn open_frame(file: &str, frame: &FrameRef, bytes: Vec<u8>) -> Result<Bytes, StoreError> {
    let fits = bytes.len() == FRAME_HEAD + frame.stored as usize
        && u32_at(&bytes, 8) == frame.check
        && frame_check(&bytes[..8], &bytes[FRAME_HEAD..]) == frame.check;
    if !fits {
        return Err(StoreError::damaged(
            file,
            frame.offset as usize,
            "the checksum of the frame there does not fit",
        ));
    }
    expand(file, frame, Bytes::from(bytes).slice(FRAME_HEAD..))
}

fn expand(file: &str, frame: &FrameRef, stored: Bytes) -> Result<Bytes, StoreError> {
    if frame.stored == frame.rows {
        return Ok(stored);
    }
    let damaged = |what: String| StoreError::damaged(file, frame.offset as usize + FRAME_HEAD, what);
    if frame.rows as usize > FRAME_BYTES_MAX {
        return Err(damaged(format!("a frame of {} bytes is above the limit", frame.rows)));
    }
    let mut rows = vec![0; frame.rows as usize];
    let length = lz4_flex::block::decompress_into(&stored, &mut rows)
        .map_err(|error| damaged(format!("the frame cannot be expanded ({error})")))?;
    if length != rows.len() {
        return Err(damaged(format!("the frame has {length} bytes of rows and says {}", frame.rows)));
    }
    Ok(Bytes::from(rows))
}

fn frame_check(lengths: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(lengths);
    hasher.update(body);
    hasher.finalize()
}
