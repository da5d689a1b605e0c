//! The handshake against whatever may connect: fuzzed bytes, cut and mixed conversations, every disagreement.

use proptest::prelude::*;
use tidegate_cluster::Secret;
use tidegate_cluster::handshake::{
    Action, Event, Failure, Handshake, Hello, MAGIC, PROTOCOL_VERSION, Purpose, Refusal,
};
use tidegate_recovery::{FlowFingerprint, Generation, ProcessIndex, RunId};

fn hello(index: u32, target: u32) -> Hello {
    Hello {
        cluster_id: "orders".into(),
        fingerprint: FlowFingerprint(0xabc),
        build: "build-1".into(),
        in_common: [("the definition".to_owned(), "1f".to_owned())].into(),
        processes: 3,
        workers_per_process: 2,
        index: ProcessIndex(index),
        target: ProcessIndex(target),
        run_id: RunId(u128::from(index) + 1000),
        generation: Generation(0),
        purpose: Purpose::Control,
        has_secret: false,
        nonce: [index as u8 + 1; 32],
    }
}

/// How both sides end.
#[derive(Debug, PartialEq)]
enum End {
    Established(Hello),
    Failed(Failure),
    Open,
}

/// Both sides talk over a wire that cuts everything into portions of `portion` bytes.
fn converse(
    (mut dialer, first): (Handshake, Vec<Action>),
    mut acceptor: Handshake,
    portion: usize,
    answer: Result<(), Refusal>,
) -> (End, End) {
    let mut ends = [End::Open, End::Open];
    let mut pending: Vec<(usize, Action)> = first.into_iter().map(|action| (0, action)).collect();
    while !pending.is_empty() {
        let (side, action) = pending.remove(0);
        match action {
            Action::Send(bytes) => {
                for part in bytes.chunks(portion) {
                    let other = if side == 0 { &mut acceptor } else { &mut dialer };
                    pending.extend(other.on(Event::Bytes(part)).into_iter().map(|action| (1 - side, action)));
                }
            }
            Action::Admit(_) => {
                assert_eq!(side, 1, "only an acceptor gives seats away");
                let actions = acceptor.on(Event::Admit(answer.clone()));
                pending.extend(actions.into_iter().map(|action| (1, action)));
            }
            Action::Established(hello) => ends[side] = End::Established(hello),
            Action::Fail(failure) => {
                ends[side] = End::Failed(failure);
                let other = if side == 0 { &mut acceptor } else { &mut dialer };
                // The connection is closed after all that was sent has arrived.
                if !pending
                    .iter()
                    .any(|(sender, action)| *sender == side && matches!(action, Action::Send(_)))
                {
                    let actions = other.on(Event::Closed("closed the connection".into()));
                    pending.extend(actions.into_iter().map(|action| (1 - side, action)));
                }
            }
        }
    }
    let [dialer_end, acceptor_end] = ends;
    (dialer_end, acceptor_end)
}

fn both(dialer: Hello, acceptor: Hello, secrets: (Option<&str>, Option<&str>)) -> (End, End) {
    let dial = Handshake::dial(dialer, secrets.0.map(Secret::new));
    converse(dial, Handshake::accept(acceptor, secrets.1.map(Secret::new)), 7, Ok(()))
}

fn differences(end: &End) -> Vec<String> {
    match end {
        End::Failed(Failure::Differs { differences, .. }) => {
            differences.iter().map(ToString::to_string).collect()
        }
        other => panic!("expected differences, got {other:?}"),
    }
}

#[test]
fn two_processes_that_agree_are_established_with_each_others_hellos() {
    for secret in [None, Some("hush")] {
        for portion in [1, 5, 1000] {
            let dial = Handshake::dial(hello(2, 0), secret.map(Secret::new));
            let accept = Handshake::accept(hello(0, 0), secret.map(Secret::new));
            let (dialer, acceptor) = converse(dial, accept, portion, Ok(()));
            let (End::Established(seen_by_dialer), End::Established(seen_by_acceptor)) = (dialer, acceptor)
            else {
                panic!("not established (secret {secret:?}, portions of {portion})");
            };
            assert_eq!((seen_by_dialer.index, seen_by_dialer.target), (ProcessIndex(0), ProcessIndex(2)));
            assert_eq!((seen_by_acceptor.index, seen_by_acceptor.run_id), (ProcessIndex(2), RunId(1002)));
        }
    }
}

#[test] // C5, C6
fn every_disagreement_ends_both_sides_with_both_values() {
    type Change = fn(&mut Hello);
    let cases: [(Change, &str, &str); 8] = [
        (
            |hello| hello.cluster_id = "returns".into(),
            "the flow is returns here and orders there",
            "the flow is orders here and returns there",
        ),
        (
            |hello| hello.fingerprint = FlowFingerprint(0xdef),
            "the flow's fingerprint is 0000000000000def here and 0000000000000abc there",
            "the flow's fingerprint is 0000000000000abc here and 0000000000000def there",
        ),
        (
            |hello| hello.build = "build-2".into(),
            "the build is build-2 here and build-1 there",
            "the build is build-1 here and build-2 there",
        ),
        (
            |hello| hello.in_common = [("the definition".to_owned(), "2e".to_owned())].into(),
            "the definition is 2e here and 1f there",
            "the definition is 1f here and 2e there",
        ),
        (
            |hello| drop(hello.in_common.insert("the interval".to_owned(), "1s".to_owned())),
            "the interval is 1s here and not known there",
            "the interval is not known here and 1s there",
        ),
        (
            |hello| hello.processes = 4,
            "the number of processes is 4 here and 3 there",
            "the number of processes is 3 here and 4 there",
        ),
        (
            |hello| hello.workers_per_process = 3,
            "the number of workers per process is 3 here and 2 there",
            "the number of workers per process is 2 here and 3 there",
        ),
        (
            |hello| hello.target = ProcessIndex(1),
            "the process index of this place is 1 here and 0 there",
            "the process index of this place is 0 here and 1 there",
        ),
    ];
    for (change, at_dialer, at_acceptor) in cases {
        let mut dialer = hello(2, 0);
        change(&mut dialer);
        let (dialer_end, acceptor_end) = both(dialer, hello(0, 0), (None, None));
        assert_eq!(differences(&dialer_end), [at_dialer]);
        assert_eq!(differences(&acceptor_end), [at_acceptor]);
        assert!(matches!(acceptor_end, End::Failed(Failure::Differs { proven: true, .. })));
    }
}

#[test]
fn several_disagreements_are_named_together() {
    let mut dialer = hello(2, 0);
    dialer.build = "build-2".into();
    dialer.workers_per_process = 9;
    let (dialer, acceptor) = both(dialer, hello(0, 0), (None, None));
    assert_eq!(differences(&dialer).len(), 2);
    assert_eq!(differences(&acceptor).len(), 2);
}

#[test]
fn without_the_secret_a_caller_is_turned_away_and_ends_nobody_but_itself() {
    for (dialer_secret, field) in
        [(None, "the shared secret is set here"), (Some("wrong"), "the shared secret is one value")]
    {
        let (dialer, acceptor) = both(hello(2, 0), hello(0, 0), (dialer_secret, Some("right")));
        assert!(differences(&dialer)[0].starts_with("the shared secret"));
        assert!(differences(&acceptor)[0].starts_with(field));
        assert!(matches!(acceptor, End::Failed(Failure::Differs { proven: false, .. })));
    }
}

#[test]
fn an_impostor_does_not_learn_more_than_that_the_secret_is_wrong() {
    let mut dialer = hello(2, 0);
    dialer.cluster_id = "returns".into();
    let (dialer, acceptor) = both(dialer, hello(0, 0), (Some("wrong"), Some("right")));
    assert_eq!(differences(&acceptor).len(), 1);
    assert_eq!(differences(&dialer).len(), 1);
}

#[test]
fn a_proof_of_one_conversation_is_worth_nothing_in_another() {
    // The dialer's bytes of a good conversation, said again word for word.
    let secret = || Some(Secret::new("hush"));
    let (mut dialer, first) = Handshake::dial(hello(2, 0), secret());
    let mut acceptor = Handshake::accept(hello(0, 0), secret());
    let mut said = Vec::new();
    let mut to_acceptor = first;
    while let Some(Action::Send(bytes)) = to_acceptor.pop() {
        said.extend_from_slice(&bytes);
        for action in acceptor.on(Event::Bytes(&bytes)) {
            if let Action::Send(bytes) = action {
                to_acceptor.extend(dialer.on(Event::Bytes(&bytes)));
            }
        }
        to_acceptor.reverse();
    }
    let mut fresh = hello(0, 0);
    fresh.nonce = [99; 32];
    let mut again = Handshake::accept(fresh, secret());
    let mut failure = None;
    for byte in said {
        for action in again.on(Event::Bytes(&[byte])) {
            if let Action::Fail(what) = action {
                failure.get_or_insert(what);
            }
        }
    }
    assert!(matches!(failure, Some(Failure::Differs { proven: false, .. })), "{failure:?}");
}

#[test] // C6
fn another_protocol_version_is_named_on_both_sides() {
    let mut acceptor = Handshake::accept(hello(0, 0), None);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(PROTOCOL_VERSION + 1).to_be_bytes());
    bytes.extend_from_slice(&[0, 9]);
    let actions = acceptor.on(Event::Bytes(&bytes));
    let [Action::Send(own), Action::Fail(failure)] = &actions[..] else { panic!("{actions:?}") };
    let text = differences(&End::Failed(failure.clone()));
    assert_eq!(text, ["protocol version is 1 here and 2 there"]);
    assert_eq!(own[..10], [&MAGIC[..], &PROTOCOL_VERSION.to_be_bytes()].concat());
}

#[test] // C5
fn a_second_process_with_the_same_index_is_refused_with_the_run_that_holds_it() {
    let mut second = hello(1, 1);
    second.run_id = RunId(77);
    second.purpose = Purpose::Probe;
    let (dialer, acceptor) = both(second, hello(1, 0), (None, None));
    let refused = Failure::Refused(Refusal::IndexTaken { holder: RunId(1001) });
    assert_eq!(dialer, End::Failed(refused.clone()));
    assert_eq!(acceptor, End::Failed(refused));
}

#[test]
fn an_acceptor_passes_its_refusal_on() {
    for refusal in [
        Refusal::IndexTaken { holder: RunId(5) },
        Refusal::OldGeneration { named: Generation(3), running: Generation(4) },
        Refusal::Retry("not now".into()),
    ] {
        let dial = Handshake::dial(hello(2, 0), None);
        let accept = Handshake::accept(hello(0, 0), None);
        let (dialer, acceptor) = converse(dial, accept, 3, Err(refusal.clone()));
        assert_eq!(dialer, End::Failed(Failure::Refused(refusal.clone())));
        assert_eq!(acceptor, End::Failed(Failure::Refused(refusal)));
    }
}

#[test]
fn a_process_that_meets_itself_is_nobody() {
    let mut own = hello(0, 0);
    own.run_id = hello(2, 0).run_id;
    let (dialer, acceptor) = both(hello(2, 0), own, (None, None));
    let itself = Failure::Stranger("is this process itself".into());
    assert_eq!(acceptor, End::Failed(itself));
    assert!(matches!(dialer, End::Failed(Failure::Stranger(_))));
}

#[test] // C8
fn strangers_are_told_apart() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n"[..], "sent an HTTP request"),
        (&[0x16, 0x03, 0x01, 0x02, 0, 1, 0, 1, 0xfc, 3, 3, 9][..], "began a TLS session"),
        (&[0; 12][..], "does not speak the protocol"),
    ] {
        let mut acceptor = Handshake::accept(hello(0, 0), None);
        let mut failure = None;
        for part in bytes.chunks(4) {
            for action in acceptor.on(Event::Bytes(part)) {
                assert!(!matches!(action, Action::Send(_)), "a stranger gets no answer");
                if let Action::Fail(what) = action {
                    failure = Some(what);
                }
            }
        }
        let Some(Failure::Stranger(what)) = failure else { panic!("{failure:?}") };
        assert!(what.starts_with(expected), "{what}");
    }
}

#[test] // C8
fn silence_and_a_closed_door_end_it() {
    for (event, expected) in [
        (Event::Expired, "did not finish its handshake in time and said nothing"),
        (Event::Closed("closed the connection".into()), "closed the connection and said nothing"),
    ] {
        let mut acceptor = Handshake::accept(hello(0, 0), None);
        let actions = acceptor.on(event);
        assert_eq!(actions, [Action::Fail(Failure::Stranger(expected.into()))]);
        assert!(acceptor.is_over());
        assert_eq!(acceptor.on(Event::Bytes(b"late")), []);
    }
}

/// Bytes that begin well, so that the fuzzing gets past the magic.
fn adversarial() -> impl Strategy<Value = Vec<u8>> {
    let preamble = |length: u16| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes
    };
    let tail = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        (any::<u16>(), tail.clone()).prop_map(move |(length, tail)| [preamble(length), tail].concat()),
        // A good introduction with some bytes changed, and something after it.
        (prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), tail).prop_map(
            |(changes, tail)| {
                let (_, first) = Handshake::dial(hello(2, 0), None);
                let Some(Action::Send(mut bytes)) = first.into_iter().next() else { unreachable!() };
                for (place, byte) in changes {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                bytes.extend_from_slice(&tail);
                bytes
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever arrives, in whatever portions: no panic, at most one end, nothing after it, and a caller is
    /// seated only after an Accept that cannot come out of thin air with a secret.
    #[test] // C8
    fn adversarial_bytes_do_no_harm(
        bytes in adversarial(),
        portion in 1_usize..40,
        secret in any::<bool>(),
    ) {
        let mut acceptor = Handshake::accept(hello(0, 0), secret.then(|| Secret::new("hush")));
        let mut ends = 0;
        let mut sent = 0;
        for part in bytes.chunks(portion) {
            for action in acceptor.on(Event::Bytes(part)) {
                match action {
                    Action::Send(bytes) => sent += bytes.len(),
                    Action::Admit(_) => {
                        prop_assert!(!secret, "seated without a proof");
                        acceptor.on(Event::Admit(Ok(())));
                        ends += 1;
                    }
                    Action::Established(_) => prop_assert!(false, "established without having been admitted"),
                    Action::Fail(_) => ends += 1,
                }
            }
        }
        if !acceptor.is_over() {
            prop_assert!(acceptor.wants() <= 4096, "it wants {} bytes", acceptor.wants());
            ends += acceptor.on(Event::Expired).len();
        }
        prop_assert_eq!(ends, 1);
        prop_assert!(sent < 2048, "a stranger made it say {} bytes", sent);
        prop_assert!(acceptor.is_over());
    }

    /// The same for the dialer, which may have been led to anybody.
    #[test]
    fn an_adversarial_answer_does_no_harm(bytes in adversarial(), portion in 1_usize..40) {
        let (mut dialer, _) = Handshake::dial(hello(2, 0), Some(Secret::new("hush")));
        for part in bytes.chunks(portion) {
            for action in dialer.on(Event::Bytes(part)) {
                prop_assert!(!matches!(action, Action::Established(_)), "established without a proof");
            }
        }
    }

    /// With a secret, what the sides say of themselves cannot be changed on the way.
    #[test]
    fn a_flipped_bit_in_an_introduction_or_a_proof_establishes_nobody(
        flip in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        side in 0_usize..2,
    ) {
        let secret = || Some(Secret::new("hush"));
        let (mut dialer, first) = Handshake::dial(hello(2, 0), secret());
        let mut acceptor = Handshake::accept(hello(0, 0), secret());
        // Introduction and proof; they are equally long on both sides.
        let length = match &first[..] {
            [Action::Send(introduction)] => introduction.len() + 32,
            other => panic!("{other:?}"),
        };
        let flip = flip.index(length);
        let mut passed = [0_usize; 2];
        let mut seen: [Option<Hello>; 2] = [None, None];
        let mut pending: Vec<(usize, Action)> = first.into_iter().map(|action| (0, action)).collect();
        while !pending.is_empty() {
            let (from, action) = pending.remove(0);
            match action {
                Action::Send(mut bytes) => {
                    if from == side && (passed[from]..passed[from] + bytes.len()).contains(&flip) {
                        bytes[flip - passed[from]] ^= 1 << bit;
                    }
                    passed[from] += bytes.len();
                    let other = if from == 0 { &mut acceptor } else { &mut dialer };
                    let actions = other.on(Event::Bytes(&bytes));
                    pending.extend(actions.into_iter().map(|action| (1 - from, action)));
                }
                Action::Admit(_) => {
                    let actions = acceptor.on(Event::Admit(Ok(())));
                    pending.extend(actions.into_iter().map(|action| (1, action)));
                }
                Action::Established(hello) => seen[from] = Some(hello),
                Action::Fail(_) => {}
            }
        }
        prop_assert_eq!(&seen, &[None, None]);
    }
}
