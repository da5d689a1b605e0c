//! What travels on the control connection of two processes after their handshake.
//!
//! A frame is its length (four bytes, big endian) and a message. Memory grows with what has arrived, never
//! with what a length claims.

use crate::cause::SentCause;
use serde::{Deserialize, Serialize};
use tidegate_recovery::{ProcessIndex, RunId};

/// Longest message. What the bring-up distributes is offsets and names, never state.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What one process says to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// "I run."
    Beat,
    /// To process 0: all my connections are there, to these runs.
    Ready { runs: Vec<RunId> },
    /// From process 0: these runs are the cluster; from now on a lost one ends the generation.
    Fixed { runs: Vec<RunId> },
    /// To process 0: this process's part of a round.
    Gather { round: u32, payload: Vec<u8> },
    /// From process 0: the outcome of a round.
    Answer { round: u32, payload: Vec<u8> },
    /// The sender leaves; nothing follows.
    Leave(Leave),
    /// This process has finished its work: the sender, or one that the receiver doubts.
    Finished { process: ProcessIndex },
    /// The sender has finished, and lost this process without hearing that it had.
    Doubt { process: ProcessIndex },
}

/// How a process leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Leave {
    /// The work of all processes is done.
    Done,
    /// It leaves before its work began or was done: it was asked to stop, or has no use for the cluster.
    Stopped,
    /// It gives the generation up.
    Fault(SentCause),
}

impl Message {
    /// The frame of the message; an error when the message is too large.
    pub(crate) fn frame(&self) -> Result<Vec<u8>, String> {
        let mut bytes = postcard::to_extend(self, vec![0; 4]).map_err(|error| error.to_string())?;
        let length = bytes.len() - 4;
        if length > MESSAGE_BYTES_MAX {
            return Err(format!("a message of {length} bytes is larger than {MESSAGE_BYTES_MAX}"));
        }
        bytes[..4].copy_from_slice(&(length as u32).to_be_bytes());
        Ok(bytes)
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    /// Takes bytes in.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, String> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*head) as usize;
        if length == 0 || length > MESSAGE_BYTES_MAX {
            return Err(format!("it sent a message of {length} bytes"));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = match postcard::take_from_bytes(body) {
            Ok((message, [])) => message,
            Ok(_) | Err(_) => return Err("it sent a message that cannot be read".into()),
        };
        self.buffer.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let messages = [
            Message::Beat,
            Message::Fixed { runs: vec![RunId(1), RunId(u128::MAX)] },
            Message::Answer { round: 3, payload: vec![7; 1000] },
            Message::Finished { process: ProcessIndex(2) },
            Message::Leave(Leave::Stopped),
        ];
        let stream: Vec<u8> = messages.iter().flat_map(|message| message.frame().unwrap()).collect();
        for portion in [1, 2, 3, 7, 100, stream.len()] {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for bytes in stream.chunks(portion) {
                frames.push(bytes);
                while let Some(message) = frames.next().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, messages);
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_on_both_sides() {
        let payload = vec![0; MESSAGE_BYTES_MAX + 1];
        assert!(Message::Gather { round: 0, payload }.frame().is_err());
        let mut frames = Frames::default();
        frames.push(&u32::MAX.to_be_bytes());
        assert!(frames.next().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next() {}
        }
    }
}
