//! What a source has emitted and the flow has not finished, against its limits.

use crate::limits::Limits;
use crate::source::PollBudget;
use std::collections::VecDeque;
use tidegate_recovery::Epoch;

/// Records and bytes by epoch, until the processing probe has passed the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    epochs: VecDeque<(Epoch, usize, usize)>,
    records: usize,
    bytes: usize,
}

/// Why a source does not poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bite {
    /// `in_flight_bytes`.
    Bytes,
    /// `in_flight_records`.
    Records,
    /// `commits_in_flight`.
    Commits,
    /// `volatile_records_max`.
    Volatile,
    /// `sink_in_flight_bytes`.
    Sinks,
    /// `in_flight_bytes` of output that waits for the end of its commit epoch.
    Outbox,
}

impl Bite {
    /// The limit's name.
    pub fn name(self) -> &'static str {
        match self {
            Bite::Bytes | Bite::Outbox => "in_flight_bytes",
            Bite::Records => "in_flight_records",
            Bite::Commits => "commits_in_flight",
            Bite::Volatile => "volatile_records_max",
            Bite::Sinks => "sink_in_flight_bytes",
        }
    }
}

impl InFlight {
    /// These were emitted in `epoch`; epochs ascend.
    pub fn emitted(&mut self, epoch: Epoch, records: usize, bytes: usize) {
        self.records += records;
        self.bytes += bytes;
        match self.epochs.back_mut() {
            Some((last, of_records, of_bytes)) if *last == epoch => {
                *of_records += records;
                *of_bytes += bytes;
            }
            _ => self.epochs.push_back((epoch, records, bytes)),
        }
    }

    /// Everything before `open` is processed; `None`: everything at all.
    pub fn passed(&mut self, open: Option<Epoch>) {
        while let Some((epoch, records, bytes)) = self.epochs.front().copied()
            && open.is_none_or(|open| epoch < open)
        {
            self.records -= records;
            self.bytes -= bytes;
            self.epochs.pop_front();
        }
    }

    /// Records in flight.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Bytes in flight.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much the next poll may hand out, or the limit that forbids it. With nothing in flight one batch is
    /// always allowed, however small the limits are.
    pub fn budget(&self, limits: &Limits) -> Result<PollBudget, Bite> {
        let all = PollBudget { records: limits.batch_records.max(1), bytes: limits.batch_bytes.max(1) };
        if self.records == 0 {
            return Ok(PollBudget { records: all.records.min(limits.in_flight_records.max(1)), ..all });
        }
        if self.bytes >= limits.in_flight_bytes {
            return Err(Bite::Bytes);
        }
        if self.records >= limits.in_flight_records {
            return Err(Bite::Records);
        }
        Ok(PollBudget {
            records: all.records.min(limits.in_flight_records - self.records),
            bytes: all.bytes.min(limits.in_flight_bytes - self.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_batch_is_always_allowed_and_the_limit_that_bites_has_a_name() {
        let limits =
            Limits { in_flight_bytes: 100, in_flight_records: 10, batch_records: 4, ..Limits::default() };
        let mut flight = InFlight::default();
        assert_eq!(flight.budget(&limits).map(|budget| budget.records), Ok(4));
        flight.emitted(Epoch(1), 1, 5000);
        assert_eq!(flight.budget(&limits), Err(Bite::Bytes));
        flight.passed(Some(Epoch(1)));
        assert_eq!(flight.budget(&limits), Err(Bite::Bytes));
        flight.passed(Some(Epoch(2)));
        flight.emitted(Epoch(2), 4, 4);
        flight.emitted(Epoch(3), 4, 4);
        assert_eq!(flight.budget(&limits).map(|budget| budget.records), Ok(2));
        flight.emitted(Epoch(3), 2, 2);
        assert_eq!(flight.budget(&limits).map_err(Bite::name), Err("in_flight_records"));
        flight.passed(None);
        assert_eq!((flight.records(), flight.bytes()), (0, 0));
    }
}
