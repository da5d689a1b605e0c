//! Who gets the seat of a process index: a pure decision.
//!
//! A seat belongs to a run. A second run that claims it either replaces a dead one or is a mistake (the same
//! index started twice). Which of the two it is, only a sign of life can tell: the newcomer waits until the
//! holder is heard again, which refuses the newcomer, or is found lost.

use crate::handshake::{Hello, Purpose, Refusal};
use tidegate_recovery::{Generation, RunId};

/// How far this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Runs come and go until all are there.
    Assembling,
    /// The list of runs is fixed, for this generation (0 until it is assigned).
    Fixed(Generation),
    /// This process leaves.
    Leaving,
}

/// What is known of the seat that a caller claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The run that has it.
    pub(crate) holder: Option<RunId>,
    /// Whether the holder was heard after the caller appeared.
    pub(crate) heard_since: bool,
    /// Whether the data connection is there.
    pub(crate) has_data: bool,
}

/// What is to happen with a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It gets the seat, or its data connection joins it. Whatever was there before is closed.
    Take,
    /// It is told why not.
    Refuse(Refusal),
    /// It waits until the holder is heard or lost.
    AwaitSign,
}

/// Decides about a caller whose handshake is complete.
pub(crate) fn admit(phase: Phase, seat: Seat, hello: &Hello) -> Admission {
    let retry = |text: &str| Admission::Refuse(Refusal::Retry(text.into()));
    match phase {
        Phase::Leaving => return retry("this process is leaving"),
        Phase::Fixed(running)
            if hello.generation.0 != 0 && hello.generation < running && seat.holder != Some(hello.run_id) =>
        {
            return Admission::Refuse(Refusal::OldGeneration { named: hello.generation, running });
        }
        Phase::Fixed(_) | Phase::Assembling => {}
    }
    let assembling = phase == Phase::Assembling;
    match (seat.holder, hello.purpose) {
        (_, Purpose::Probe) => retry("it only asked"),
        (None, Purpose::Control) if assembling => Admission::Take,
        (None, Purpose::Control) => retry("the generation in which this seat was held is ending"),
        (None, Purpose::Data) => retry("the control connection comes first"),
        (Some(holder), Purpose::Data) if holder == hello.run_id => {
            if assembling || !seat.has_data {
                Admission::Take
            } else {
                retry("the data connection is there already")
            }
        }
        (Some(_), Purpose::Data) => retry("the seat belongs to another run by now"),
        // The caller gave an earlier attempt up, of which this side does not know yet.
        (Some(holder), Purpose::Control) if holder == hello.run_id => {
            if assembling {
                Admission::Take
            } else {
                retry("the control connection is there already")
            }
        }
        (Some(holder), Purpose::Control) => {
            if seat.heard_since {
                Admission::Refuse(Refusal::IndexTaken { holder })
            } else {
                Admission::AwaitSign
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_recovery::{FlowFingerprint, ProcessIndex};

    const EMPTY: Seat = Seat { holder: None, heard_since: false, has_data: false };
    const HELD: Seat = Seat { holder: Some(RunId(1)), heard_since: false, has_data: true };

    fn hello(run: u128, purpose: Purpose) -> Hello {
        Hello {
            cluster_id: "flow".into(),
            fingerprint: FlowFingerprint(0),
            build: "b".into(),
            in_common: Default::default(),
            processes: 2,
            workers_per_process: 1,
            index: ProcessIndex(1),
            target: ProcessIndex(0),
            run_id: RunId(run),
            generation: Generation(0),
            purpose,
            has_secret: false,
            nonce: [0; 32],
        }
    }

    #[test] // C3, C5
    fn a_second_run_waits_until_the_first_is_heard_or_lost() {
        for phase in [Phase::Assembling, Phase::Fixed(Generation(4))] {
            let second = hello(2, Purpose::Control);
            assert_eq!(admit(phase, HELD, &second), Admission::AwaitSign);
            let heard = Seat { heard_since: true, ..HELD };
            assert_eq!(
                admit(phase, heard, &second),
                Admission::Refuse(Refusal::IndexTaken { holder: RunId(1) })
            );
        }
        assert_eq!(admit(Phase::Assembling, EMPTY, &hello(2, Purpose::Control)), Admission::Take);
    }

    #[test] // C3
    fn a_running_generation_takes_nobody_in() {
        let running = Phase::Fixed(Generation(4));
        for (seat, purpose) in [(EMPTY, Purpose::Control), (HELD, Purpose::Data)] {
            assert!(matches!(admit(running, seat, &hello(2, purpose)), Admission::Refuse(Refusal::Retry(_))));
        }
    }

    #[test]
    fn a_caller_of_an_older_generation_is_told_so() {
        let caller = Hello { generation: Generation(3), ..hello(2, Purpose::Control) };
        let refusal = Refusal::OldGeneration { named: Generation(3), running: Generation(4) };
        assert_eq!(admit(Phase::Fixed(Generation(4)), HELD, &caller), Admission::Refuse(refusal));
    }

    #[test]
    fn a_caller_that_tries_again_replaces_its_own_earlier_attempt() {
        assert_eq!(admit(Phase::Assembling, HELD, &hello(1, Purpose::Control)), Admission::Take);
        assert_eq!(admit(Phase::Assembling, HELD, &hello(1, Purpose::Data)), Admission::Take);
    }

    #[test]
    fn the_data_connection_joins_only_its_own_run() {
        for seat in [EMPTY, HELD] {
            assert!(matches!(
                admit(Phase::Assembling, seat, &hello(2, Purpose::Data)),
                Admission::Refuse(Refusal::Retry(_))
            ));
        }
    }
}
