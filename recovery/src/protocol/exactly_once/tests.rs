//! Single ways through the machines that a driver relies on; the search walks all of them.

use super::*;
use crate::{Generation, ProcessIndex};

const STORE: StoreId = StoreId(5);
const SLOT: Slot = Slot(0);

fn partition() -> TopicPartition {
    TopicPartition::new("in", 0)
}

fn at(next: i64) -> Vec<(TopicPartition, NextOffset)> {
    vec![(partition(), NextOffset(next))]
}

fn outbox(epoch: u64, slot: Slot) -> OutboxRef {
    let (generation, process) = (Generation(7), ProcessIndex(slot.0));
    OutboxRef { epoch: Epoch(epoch), generation, process, slot, length: 0, checksum: 0 }
}

fn durable(epoch: u64, output: bool, next: i64) -> Event {
    Event::Durable { epoch: Epoch(epoch), outbox: output.then(|| outbox(epoch, SLOT)), offsets: at(next) }
}

/// A publisher of generation 7 that goes on from epoch 10 and offset 4, with the group where it is told.
fn slot(slots: u32, group: i64) -> SlotPublisher {
    let mut machine = SlotPublisher::new(SlotSettings {
        store: STORE,
        generation: Generation(7),
        slot: SLOT,
        slots: (0..slots).map(Slot).collect(),
        resumed: Epoch(10),
        offsets: at(4),
        group: at(group),
        nonce: 1,
    });
    machine.on(Event::Go);
    for answer in [Answer::Done, Answer::InCharge] {
        machine.on(Event::Answer(answer));
    }
    assert_eq!(machine.on(Event::Answer(Answer::Markers(Vec::new()))), [Action::Ready]);
    machine
}

/// Answers `Done` until the machine has nothing to do, and returns what it asked for.
fn all_done(machine: &mut SlotPublisher, mut actions: Vec<Action>) -> Vec<Action> {
    let mut asked = Vec::new();
    while let Some(action) = actions.last().cloned() {
        asked.append(&mut actions);
        if matches!(action, Action::Ready | Action::Announce { .. } | Action::Stop(_)) {
            break;
        }
        actions = machine.on(Event::Answer(Answer::Done));
    }
    asked
}

// E13
#[test]
fn offsets_travel_alone_only_when_it_is_quiet_and_never_below_what_the_group_has() {
    let mut machine = slot(1, 6);
    assert_eq!(machine.on(Event::Quiet), [], "the group is ahead of the resumed offset");
    let published = machine.on(durable(20, false, 5));
    assert_eq!(published, [Action::Announce { slot: SLOT, epoch: Epoch(20) }], "nothing was to be published");
    assert_eq!(machine.on(Event::Quiet), [], "5 is below 6 still");
    machine.on(durable(30, false, 9));
    assert!(!machine.is_settled(), "offset 9 waits for company");
    let quiet = machine.on(Event::Quiet);
    let asked = all_done(&mut machine, quiet);
    assert_eq!(
        asked,
        [Action::Begin(SLOT), Action::SendOffsets { slot: SLOT, offsets: at(9) }, Action::Commit(SLOT)]
    );
    assert!(machine.is_settled());
    assert_eq!(machine.on(Event::Quiet), []);
}

// L39 L61
#[test]
fn an_idle_group_is_told_again_what_it_has_and_what_is_due_goes_first() {
    let mut machine = slot(1, 6);
    let told = |next| {
        [Action::Begin(SLOT), Action::SendOffsets { slot: SLOT, offsets: at(next) }, Action::Commit(SLOT)]
    };
    let again = machine.on(Event::KeepAlive);
    assert_eq!(all_done(&mut machine, again), told(6), "the resumed offset is below the group's");
    assert_eq!(machine.on(Event::Quiet), [], "once");
    machine.on(durable(20, false, 9));
    assert_eq!(machine.on(Event::KeepAlive), [], "9 is on its way");
    let quiet = machine.on(Event::Quiet);
    assert_eq!(all_done(&mut machine, quiet), told(9));
    assert_eq!(machine.on(Event::Quiet), [], "the group has just been told");
    let begun = machine.on(durable(30, true, 10));
    assert_eq!(machine.on(Event::KeepAlive), [], "one thing at a time");
    assert_eq!(all_done(&mut machine, begun).first(), Some(&Action::Begin(SLOT)));
}

#[test]
fn while_a_transaction_ends_further_epochs_become_durable_and_are_published_in_their_order() {
    let mut machine = slot(1, 4);
    let mut actions = machine.on(durable(20, true, 5));
    let mut sent = Vec::new();
    while let Some(action) = actions.pop() {
        if action == Action::Commit(SLOT) && sent.len() == 1 {
            assert_eq!(machine.on(durable(30, false, 6)), [], "one thing at a time");
            assert_eq!(machine.on(durable(40, true, 7)), []);
            assert_eq!(machine.published_by_all(), Epoch(10));
        }
        match action {
            Action::SendOutbox(outbox) => sent.push(outbox.epoch.0),
            Action::Announce { .. } => break,
            _ => {}
        }
        actions = machine.on(Event::Answer(Answer::Done));
    }
    assert_eq!((sent, machine.published_by_all()), (vec![20, 40], Epoch(40)));
    assert!(machine.is_settled());
}

#[test]
fn a_slot_waits_for_the_others_before_it_begins_the_next_epoch_and_carries_what_all_have_published() {
    let mut machine = slot(2, 4);
    let begun = machine.on(durable(20, true, 5));
    let asked = all_done(&mut machine, begun);
    assert!(!asked.iter().any(|action| matches!(action, Action::SendOffsets { .. })), "slot 1 owes epoch 20");
    assert_eq!(machine.on(durable(30, true, 6)), [], "nor may this one go ahead of it");
    let begun = machine.on(Event::PeerPublished { slot: Slot(1), epoch: Epoch(20) });
    let asked = all_done(&mut machine, begun);
    assert_eq!(asked[3], Action::SendOffsets { slot: SLOT, offsets: at(5) });
    assert_eq!(machine.published_by_all(), Epoch(20));
    machine.on(Event::Quiet);
    let begun = machine.on(Event::PeerPublished { slot: Slot(1), epoch: Epoch(30) });
    assert_eq!(all_done(&mut machine, begun)[1], Action::SendOffsets { slot: SLOT, offsets: at(6) });
}

// fault E7 fault E9 fault E10 E10
#[test]
fn a_fenced_producer_is_replaced_while_the_lease_is_ours_and_ends_the_process_otherwise() {
    let mut machine = slot(1, 4);
    machine.on(durable(20, true, 5));
    assert_eq!(machine.on(Event::Answer(Answer::Fenced)), [Action::LookAtLease]);
    assert_eq!(machine.on(Event::Answer(Answer::InCharge)), [Action::Initialise(SLOT)]);
    assert_eq!(machine.on(Event::Answer(Answer::Done)), [Action::LookAtLease]);
    let [Action::Stop(stop)] = &machine.on(Event::Answer(Answer::Overtaken))[..] else {
        panic!("a newer generation is in charge")
    };
    assert_eq!((stop.code(), stop.class().exit_code()), ("PRODUCER_FENCED", 75));
    assert_eq!(machine.on(durable(30, true, 6)), [], "nothing more is published");
}

// fault E4 fault E11
#[test]
fn after_an_unclear_end_the_marker_says_whether_the_epoch_was_published() {
    for published in [true, false] {
        let mut machine = slot(1, 4);
        machine.on(durable(20, true, 5));
        for _ in 0..4 {
            machine.on(Event::Answer(Answer::Done));
        }
        assert_eq!(machine.on(Event::Answer(Answer::Unclear)), [Action::LookAtLease]);
        assert_eq!(
            machine.on(Event::Answer(Answer::InCharge)),
            [Action::Initialise(SLOT)],
            "never used again"
        );
        machine.on(Event::Answer(Answer::Done));
        let token = Token { nonce: 1, count: 2 };
        let read = machine.on(Event::Answer(Answer::InCharge));
        assert_eq!(read, [Action::ReadMarkers { slot: SLOT, token }], "a new token for each reading");
        let marker = Marker { generation: Generation(7), epoch: Epoch(if published { 20 } else { 10 }) };
        let markers = vec![SeenMarker { store: STORE, slot: SLOT, marker }];
        let then = machine.on(Event::Answer(Answer::Markers(markers)));
        if published {
            assert_eq!(then, [Action::Announce { slot: SLOT, epoch: Epoch(20) }]);
        } else {
            assert_eq!(then, [Action::Begin(SLOT)]);
        }
    }
}

// K15
#[test]
fn a_row_that_the_broker_refuses_stops_the_flow_and_says_how_to_remove_it() {
    let mut machine = slot(1, 4);
    machine.on(durable(20, true, 5));
    machine.on(Event::Answer(Answer::Done));
    let refused = Answer::Refused { row: 17, what: "message too large".to_owned() };
    let [Action::Stop(stop)] = &machine.on(Event::Answer(refused))[..] else { panic!("it cannot go on") };
    assert_eq!(stop.class().exit_code(), 65);
    let command = "`tidegate recovery outbox skip DIR outbox/00000000000000000020-0000000007-00000 17`";
    assert!(stop.to_string().contains(command), "{stop}");
}

#[test]
fn a_start_fences_what_only_the_record_names_and_then_chooses_again() {
    let mut start = OutputStart::new(OutputStartSettings {
        store: STORE,
        generation: Generation(8),
        slots: vec![Slot(0)],
        own: Slot(0),
        allow_lost_state: false,
        nonce: 1,
    });
    assert_eq!(start.begin(), Action::Initialise(Slot(0)));
    assert_eq!(start.on(Answer::Done), Action::LookAtLease);
    assert_eq!(start.on(Answer::InCharge), Action::ChooseRecord);
    let outboxes = vec![outbox(20, Slot(2)), outbox(10, Slot(0))];
    let chosen = Chosen { epoch: Some(Epoch(20)), slots: vec![Slot(0), Slot(1)], outboxes };
    assert_eq!(start.on(Answer::Chosen(chosen.clone())), Action::Initialise(Slot(2)));
    assert_eq!(start.on(Answer::Done), Action::Initialise(Slot(1)));
    assert_eq!(start.on(Answer::Done), Action::LookAtLease);
    assert_eq!(start.on(Answer::InCharge), Action::ChooseRecord);
    assert!(matches!(start.on(Answer::Chosen(chosen)), Action::ReadMarkers { .. }));
    assert_eq!(start.on(Answer::Markers(Vec::new())), Action::Begin(Slot(0)), "the oldest first");
}

// S11
#[test]
fn a_store_that_went_back_in_time_and_an_empty_one_beside_old_markers_are_refused() {
    let refused = |store: StoreId, chosen: Chosen, allow_lost_state: bool| {
        let (generation, slots) = (Generation(8), vec![Slot(0)]);
        let settings =
            OutputStartSettings { store: STORE, generation, slots, own: Slot(0), allow_lost_state, nonce: 1 };
        let mut start = OutputStart::new(settings);
        start.begin();
        for answer in [Answer::Done, Answer::InCharge, Answer::Chosen(chosen)] {
            start.on(answer);
        }
        let marker = Marker { generation: Generation(7), epoch: Epoch(30) };
        match start.on(Answer::Markers(vec![SeenMarker { store, slot: Slot(0), marker }])) {
            Action::Stop(stop) => Some((stop.code(), stop.class().exit_code())),
            Action::Ready => None,
            other => panic!("{other:?}"),
        }
    };
    let older = Chosen { epoch: Some(Epoch(20)), ..Chosen::default() };
    let newer = Chosen { epoch: Some(Epoch(30)), ..Chosen::default() };
    assert_eq!(refused(STORE, older.clone(), true), Some(("STORE_BEHIND_OUTPUT", 65)));
    assert_eq!(refused(STORE, Chosen::default(), true), Some(("STORE_BEHIND_OUTPUT", 65)));
    assert_eq!(refused(STORE, newer, false), None);
    assert_eq!(refused(StoreId(4), Chosen::default(), false), Some(("STATE_LOST", 78)));
    assert_eq!(refused(StoreId(4), Chosen::default(), true), None);
    assert_eq!(refused(StoreId(4), older, false), None, "this store has its own history");
}

// fault P5 fault E11 E9
#[test]
fn a_direct_transaction_is_opened_by_the_first_output_and_sent_again_from_its_start() {
    let mut machine = PartitionPublisher::new(partition());
    machine.on(DirectEvent::Go);
    machine.on(DirectEvent::Answer(Answer::Done));
    machine.on(DirectEvent::Answer(Answer::InCharge));
    let committed = Answer::Committed(Some(NextOffset(4)));
    let resumed = machine.on(DirectEvent::Answer(committed.clone()));
    assert_eq!(
        resumed,
        [DirectAction::Resume(Some(NextOffset(4)))],
        "nothing is open while there is no output"
    );
    let closed = |epoch, output, next| DirectEvent::Closed { epoch, output, next: NextOffset(next) };
    assert_eq!(machine.on(closed(Epoch(10), false, 4)), [], "nothing moved");
    assert_eq!(machine.on(DirectEvent::Output(Epoch(20))), [DirectAction::Begin]);
    assert_eq!(machine.on(DirectEvent::Answer(Answer::Done)), [DirectAction::Send(Epoch(20))]);
    // The answer to the sending comes when the epoch is closed; before, the producer is lost once.
    machine.on(DirectEvent::Answer(Answer::Unclear));
    machine.on(DirectEvent::Answer(Answer::InCharge));
    machine.on(DirectEvent::Answer(Answer::Done));
    machine.on(DirectEvent::Answer(Answer::InCharge));
    assert_eq!(machine.on(DirectEvent::Answer(committed)), [DirectAction::Begin]);
    assert_eq!(machine.on(DirectEvent::Answer(Answer::Done)), [DirectAction::Send(Epoch(20))]);
    assert_eq!(machine.on(closed(Epoch(20), true, 7)), []);
    assert_eq!(machine.on(DirectEvent::Output(Epoch(30))), [], "it gathers meanwhile");
    assert_eq!(machine.on(DirectEvent::Answer(Answer::Done)), [DirectAction::SendOffset(NextOffset(7))]);
    assert_eq!(machine.on(DirectEvent::Answer(Answer::Done)), [DirectAction::Commit]);
    // Somebody else has moved the offset meanwhile.
    machine.on(DirectEvent::Answer(Answer::Unclear));
    machine.on(DirectEvent::Answer(Answer::InCharge));
    machine.on(DirectEvent::Answer(Answer::Done));
    machine.on(DirectEvent::Answer(Answer::InCharge));
    let moved = machine.on(DirectEvent::Answer(Answer::Committed(Some(NextOffset(6)))));
    let [DirectAction::Stop(stop)] = &moved[..] else { panic!("another owner is in charge: {moved:?}") };
    assert_eq!(stop.code(), "PRODUCER_FENCED");
    assert!(stop.to_string().contains("in.0"), "{stop}");
}

#[test]
fn transactional_ids_are_as_they_were() {
    let slot = Identity::Slot { store: STORE, slot: Slot(3) };
    assert_eq!(slot.transactional_id("orders"), "tidegate.orders.00000000000000000000000000000005.3");
    assert_eq!(Identity::Partition(partition()).transactional_id("orders"), "tidegate.orders.in.0");
}
