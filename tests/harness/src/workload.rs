//! Orders that are a function of a seed: ids, keys, event times out of order within a bound, and, in chosen
//! shares, records that come too late, repeats, and records that a filter drops.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::produce::Message;

/// What to make. The same values give the same records.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The seed of everything random.
    pub seed: u64,
    /// Partitions of the topic; each record is put on one at random, so that every key is on all of them.
    pub partitions: i32,
    /// How many records, repeats included.
    pub records: usize,
    /// How many different customers.
    pub keys: u32,
    /// Event time of the first record, in ms.
    pub start_ms: i64,
    /// By how much the event time advances with each record, over all partitions, in ms.
    pub step_ms: i64,
    /// By how much a record may be older than the newest of its partition, in ms.
    pub disorder_ms: i64,
    /// Of a thousand records, how many come later than the disorder allows.
    pub late_per_mille: u32,
    /// By how much the late ones are later than the disorder allows, at most, in ms.
    pub late_by_ms: i64,
    /// Of a thousand records, how many repeat the one before, id and all.
    pub repeats_per_mille: u32,
    /// Of a thousand records, how many are not paid, for a filter to drop.
    pub unpaid_per_mille: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Workload {
            seed: 1,
            partitions: 4,
            records: 2_000,
            keys: 50,
            start_ms: 1_735_689_600_000,
            step_ms: 50,
            disorder_ms: 2_000,
            late_per_mille: 0,
            late_by_ms: 60_000,
            repeats_per_mille: 0,
            unpaid_per_mille: 0,
        }
    }
}

/// One order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Unique, but for repeats.
    pub id: u64,
    /// The topic's partition.
    pub partition: i32,
    /// The offset that it gets when the partition is empty before and nobody else writes.
    pub offset: i64,
    /// The key.
    pub customer: String,
    /// The event time in ms.
    pub at_ms: i64,
    /// Something to sum.
    pub amount: i64,
    /// What a filter asks for.
    pub paid: bool,
}

impl Workload {
    /// The records in the order in which they are to be produced. Prints the workload, so that a failing test shows its seed.
    pub fn events(&self) -> Vec<Event> {
        eprintln!("workload: {self:?}");
        let mut random = SmallRng::seed_from_u64(self.seed);
        let partitions = usize::try_from(self.partitions).unwrap_or_else(|e| panic!("partitions: {e}"));
        let mut next_offset = vec![0_i64; partitions];
        let mut highest = vec![i64::MIN; partitions];
        let mut events: Vec<Event> = Vec::with_capacity(self.records);
        let mut base = self.start_ms;
        while events.len() < self.records {
            if let Some(last) = events.last()
                && random.random_range(0..1000) < self.repeats_per_mille
            {
                let mut again = last.clone();
                let slot = &mut next_offset[index(again.partition)];
                again.offset = *slot;
                *slot += 1;
                events.push(again);
                continue;
            }
            let partition = random.random_range(0..self.partitions);
            let at = index(partition);
            let mut at_ms = base - random.random_range(0..=self.disorder_ms);
            if highest[at] > i64::MIN && random.random_range(0..1000) < self.late_per_mille {
                at_ms = highest[at] - self.disorder_ms - random.random_range(1..=self.late_by_ms.max(1));
            }
            highest[at] = highest[at].max(at_ms);
            events.push(Event {
                id: events.len() as u64,
                partition,
                offset: next_offset[at],
                customer: format!("c{}", random.random_range(0..self.keys)),
                at_ms,
                amount: random.random_range(-50..1000),
                paid: random.random_range(0..1000) >= self.unpaid_per_mille,
            });
            next_offset[at] += 1;
            base += self.step_ms;
        }
        events
    }
}

fn index(partition: i32) -> usize {
    usize::try_from(partition).unwrap_or_else(|e| panic!("partition {partition}: {e}"))
}

impl Event {
    /// The event as a JSON record, with its event time as the timestamp.
    pub fn message(&self) -> Message {
        let value = serde_json::json!({
            "id": self.id, "customer": self.customer, "at_ms": self.at_ms, "amount": self.amount, "paid": self.paid,
        });
        Message::new(self.customer.as_bytes(), value.to_string()).to(self.partition).at(self.at_ms)
    }
}

/// All events as records.
pub fn messages(events: &[Event]) -> Vec<Message> {
    events.iter().map(Event::message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_records_again_and_another_seed_others() {
        let workload = Workload { late_per_mille: 50, repeats_per_mille: 50, ..Workload::default() };
        assert_eq!(workload.events(), workload.events());
        assert_ne!(workload.events(), Workload { seed: 2, ..workload }.events());
    }

    #[test]
    fn without_a_share_of_late_records_no_record_is_older_than_the_disorder_allows() {
        let workload = Workload::default();
        let mut highest = [i64::MIN; 4];
        for event in workload.events() {
            let seen = &mut highest[index(event.partition)];
            assert!(event.at_ms >= seen.saturating_sub(workload.disorder_ms), "{event:?} after {seen}");
            *seen = (*seen).max(event.at_ms);
        }
    }
}
