//! A segment: the rows of one commit epoch and process, in compressed and checksummed frames.
//!
//! This file reads them; [`super::builder`] makes them.

use super::{HEAD, Kind, check_head, check_length, check_whole, read_sealed, u32_at};
use crate::names::{Name, PartName};
use crate::{Epoch, Generation, ProcessIndex, SegmentRef, StepId, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Length of a frame's head: stored length, row bytes, checksum.
pub(crate) const FRAME_HEAD: usize = 12;
/// A frame's row bytes are at most this.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// One row is at most this long, with its key.
pub(crate) const ROW_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// What stands in front of a segment's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHead {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) process: ProcessIndex,
    /// The steps that the rows' numbers mean, and the version of their rows.
    pub(crate) steps: Vec<(StepId, u32)>,
}

/// Where a frame lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    pub(crate) offset: u64,
    /// Bytes in the file, without the frame's head.
    pub(crate) stored: u32,
    /// Bytes of rows.
    pub(crate) rows: u32,
    pub(super) check: u32,
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
        let name = PartName::from(segment);
        let file = Name::Segment(name).to_string();
        check_length(&file, bytes.len() as u64, segment.length)?;
        let opened = SegmentFile::parse(&file, name, bytes)?;
        check_whole(&file, &opened.bytes, segment.checksum)?;
        Ok(opened)
    }

    /// Like [`SegmentFile::open`], for a file that no record names.
    pub(crate) fn parse(file: &str, name: PartName, bytes: Vec<u8>) -> Result<SegmentFile, StoreError> {
        check_head(file, &bytes, Kind::Segment)?;
        let (head, at): (SegmentHead, usize) = read_sealed(file, &bytes, HEAD)?;
        let found = PartName { epoch: head.epoch, generation: head.generation, process: head.process };
        if found != name {
            let what = format!("it is {}, under another's name", Name::Segment(found));
            return Err(StoreError::damaged(file, HEAD, what));
        }
        let frames = read_frames(file, &bytes, at)?;
        Ok(SegmentFile { file: file.to_owned(), head, frames, bytes: Bytes::from(bytes) })
    }

    /// The rows of a frame. A frame that was stored as it is costs no copy.
    pub(crate) fn rows(&self, frame: &FrameRef) -> Result<Bytes, StoreError> {
        frame_rows(&self.file, frame, &self.bytes)
    }
}

/// Finds and checks the frames from `at` to the end of a file.
pub(super) fn read_frames(file: &str, bytes: &[u8], mut at: usize) -> Result<Vec<FrameRef>, StoreError> {
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
    Ok(frames)
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

/// The rows of a frame of a file that was read whole.
pub(super) fn frame_rows(file: &str, frame: &FrameRef, bytes: &Bytes) -> Result<Bytes, StoreError> {
    let start = frame.offset as usize + FRAME_HEAD;
    expand(file, frame, bytes.slice(start..start + frame.stored as usize))
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

pub(super) fn frame_check(lengths: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(lengths);
    hasher.update(body);
    hasher.finalize()
}
