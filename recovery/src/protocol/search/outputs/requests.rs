//! What a driver does with the actions of its machine: requests to the broker, and their answers.

use super::{Action, Answer, Hands, Outcome, Outputs};
use crate::protocol::exactly_once::{Event, SeenMarker};
use crate::protocol::search::broker::{Control, Reply};
use crate::protocol::{Rule, Rules};
use crate::{Slot, StoreId};

/// Lost answers that make a difference.
pub(super) fn outcomes(action: &Action, any_lost: bool) -> &'static [Outcome] {
    match action {
        Action::Commit(_) => &[Outcome::LostDone, Outcome::LostUndone, Outcome::LostLater],
        Action::Initialise(_) => &[Outcome::LostDone, Outcome::LostUndone],
        Action::SendOutbox(_) | Action::SendMarker { .. } | Action::SendOffsets { .. } if any_lost => {
            &[Outcome::LostDone, Outcome::LostUndone]
        }
        Action::ReadMarkers { .. } if any_lost => &[Outcome::LostDone],
        _ => &[],
    }
}

impl Outputs {
    pub(super) fn publish(
        &mut self,
        index: usize,
        process: usize,
        outcome: Outcome,
        rules: Rules,
    ) -> Result<(), String> {
        let Some(running) = &mut self.runs[index].running else { return Ok(()) };
        let driven = &mut running.processes[process];
        let Some(action) = driven.action.clone() else { return Ok(()) };
        let mut hands = driven.hands;
        let answer = self.perform(index, &action, outcome, &mut hands, rules)?;
        let Some(running) = &mut self.runs[index].running else { return Ok(()) };
        let driven = &mut running.processes[process];
        driven.hands = hands;
        match answer {
            Some(answer) if !self.runs[index].gone => self.tell(index, process, Event::Answer(answer)),
            _ => Ok(()),
        }
    }

    /// Performs an action on the broker; `None` while it goes on, or when the run ended over it.
    pub(super) fn perform(
        &mut self,
        index: usize,
        action: &Action,
        outcome: Outcome,
        hands: &mut Hands,
        rules: Rules,
    ) -> Result<Option<Answer>, String> {
        let (lost, arrives) = (outcome != Outcome::Answered, outcome != Outcome::LostUndone);
        let store = self.runs[index].store;
        let id = |slot: Slot| store * 2 + slot.0 as u8;
        let producers = hands.producers;
        let producer =
            |slot: Slot| producers[slot.0 as usize].expect("a slot is initialised before it is used");
        let reply = match action {
            Action::LookAtLease => {
                let answer = if self.is_newest(index) { Answer::InCharge } else { Answer::Overtaken };
                return Ok(Some(answer));
            }
            Action::Initialise(slot) => {
                if arrives {
                    hands.producers[slot.0 as usize] = Some(self.broker.initialise(id(*slot))?);
                }
                Reply::Done
            }
            Action::ReadMarkers { slot, token } => {
                // Who reads before it fenced anybody has no producer to write a token with.
                if !hands.halfway && hands.producers[slot.0 as usize].is_some() {
                    hands.halfway = true;
                    if self.broker.takes(producer(*slot)) == Reply::Fenced {
                        return Ok(Some(Answer::Fenced));
                    }
                    self.broker.end_transaction(producer(*slot), true)?;
                    self.broker.write_control(Control::Token(*token))?;
                    if rules.has(Rule::UntilToken) {
                        return Ok(lost.then_some(Answer::Unclear));
                    }
                }
                return Ok(Some(if lost { Answer::Unclear } else { Answer::Markers(self.broker.markers()) }));
            }
            Action::SendOutbox(outbox) => {
                let Some(rows) = self.store.outboxes.get(outbox).cloned() else {
                    if self.is_newest(index) {
                        return Err(format!("the outbox of epoch {} is gone", outbox.epoch));
                    }
                    // The file is gone under it.
                    self.runs[index].end();
                    return Ok(None);
                };
                let producer = producer(outbox.slot);
                let reply = if arrives { self.broker.takes(producer) } else { Reply::Done };
                if arrives && reply == Reply::Done {
                    rows.into_iter().for_each(|row| self.broker.send(producer, row));
                }
                reply
            }
            Action::SendMarker { slot, marker } => {
                let seen = SeenMarker { store: StoreId(store.into()), slot: *slot, marker: *marker };
                if !rules.has(Rule::MarkerInTransaction) {
                    self.broker.write_control(Control::Marker(seen))?;
                    return Ok(Some(Answer::Done));
                }
                let reply = if arrives { self.broker.takes(producer(*slot)) } else { Reply::Done };
                if arrives && reply == Reply::Done {
                    self.broker.send_control(producer(*slot), Control::Marker(seen));
                }
                reply
            }
            Action::SendOffsets { slot, offsets } => {
                let offsets: Vec<(u8, u8)> = offsets
                    .iter()
                    .map(|(partition, next)| (partition.partition as u8, next.0 as u8))
                    .collect();
                if !rules.has(Rule::OffsetsInTransaction) {
                    for (partition, next) in offsets {
                        hands.plain[usize::from(partition)] = Some(next);
                    }
                    return Ok(Some(Answer::Done));
                }
                let reply = if arrives { self.broker.takes(producer(*slot)) } else { Reply::Done };
                if arrives && reply == Reply::Done {
                    self.broker.send_offsets(producer(*slot), &offsets);
                }
                reply
            }
            Action::Commit(_) if hands.halfway => {
                self.broker.commit_offsets(std::mem::take(&mut hands.plain))?;
                Reply::Done
            }
            Action::Commit(slot) if !rules.has(Rule::OffsetsInTransaction) => {
                if self.broker.end_transaction(producer(*slot), true)? == Reply::Fenced {
                    return Ok(Some(Answer::Fenced));
                }
                hands.halfway = true;
                return Ok(None);
            }
            Action::Commit(slot) => match outcome {
                Outcome::Answered | Outcome::LostDone => {
                    self.broker.end_transaction(producer(*slot), true)?
                }
                Outcome::LostUndone => Reply::Done,
                Outcome::LostLater => {
                    self.broker.delay(producer(*slot), true);
                    Reply::Done
                }
            },
            Action::Abort(slot) => match self.broker.end_transaction(producer(*slot), false)? {
                // Nothing was open: as good as aborted.
                Reply::Invalid => Reply::Done,
                reply => reply,
            },
            action => unreachable!("{action:?} is no request to the broker"),
        };
        Ok(Some(match reply {
            _ if lost => Answer::Unclear,
            Reply::Done => Answer::Done,
            Reply::Fenced => Answer::Fenced,
            Reply::Invalid => Answer::Unclear,
        }))
    }
}
