//! Process 0's part: older generations are fenced, and what they left over is published, before anybody works.

use super::{Performer, PerformerSettings, fault_of_stop, nonce};
use crate::causes::{cause_of, store_cause};
use std::time::{Duration, Instant};
use tidegate_cluster::Cause;
use tidegate_recovery::exactly_once::{Action, Answer, Chosen, OutputStart, OutputStartSettings};
use tidegate_recovery::{Claim, RecoveryStore, Slot};

/// Does all that must be done between the lease and the barrier; the claim has chosen its record then.
pub(crate) fn start_output(
    claim: &mut Claim,
    store: &RecoveryStore,
    settings: PerformerSettings,
    allow_lost_state: bool,
    within: Duration,
) -> Result<(), Cause> {
    let slots = claim.slots().map_err(|error| store_cause(&error))?;
    let lease = store.lease_view(claim.generation());
    let deadline = Some(Instant::now() + within);
    let mut performer =
        Performer::new(settings, store.clone(), claim.store(), lease, deadline, Default::default());
    let mut machine = OutputStart::new(OutputStartSettings {
        store: claim.store(),
        generation: claim.generation(),
        slots,
        own: Slot(0),
        allow_lost_state,
        nonce: nonce().map_err(|fault| cause_of(&fault))?,
    });
    let mut action = machine.begin();
    loop {
        let answer = match &action {
            Action::Ready => return Ok(()),
            Action::Stop(stop) => return Err(cause_of(&fault_of_stop(stop))),
            Action::ChooseRecord => {
                Answer::Chosen(Chosen::from(claim.choose().map_err(|error| store_cause(&error))?))
            }
            Action::SendOutbox(outbox) => {
                tracing::info!(
                    slot = %outbox.slot,
                    epoch = %outbox.epoch,
                    "publishing what the last run had made durable and not yet published"
                );
                performer.perform(&action).map_err(|fault| cause_of(&fault))?
            }
            other => performer.perform(other).map_err(|fault| cause_of(&fault))?,
        };
        action = machine.on(answer);
    }
}
