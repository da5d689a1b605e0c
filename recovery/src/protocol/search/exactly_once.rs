//! The worlds in which exactly once is searched, and what each rule is there for.

use super::super::{Rule, Rules};
use super::reads::Reads;
use super::{Explored, Found, direct, explore, long, outputs, told};
use direct::Direct;
use outputs::Outputs;
use std::time::Instant;

const SMALL: outputs::Bounds = outputs::Bounds {
    starts: 2,
    zombies: 0,
    lost: 0,
    any_lost: false,
    expiries: 0,
    crashes: 0,
    wipes: 0,
    older_copies: 0,
    keepalives: 0,
    keys_cross: true,
    shapes: &[1],
    epochs: 1,
    in_flight: 1,
    leaps: false,
    kills: true,
    reads: Reads::FirstReadsAll,
    states_max: 3_000_000,
};

const DIRECT: direct::Bounds = direct::Bounds {
    starts: 2,
    zombies: 1,
    lost: 0,
    expiries: 0,
    shapes: &[1],
    in_flight: 1,
    partitions: 1,
    states_max: 3_000_000,
};

/// Explores with every rule in place, says how much that was, and fails at what must never happen.
fn sound<W: Explored>(start: &W, name: &str, bounds: &W::Bounds, states_max: usize) {
    let started = Instant::now();
    let found = explore(start, Rules::ALL, bounds, states_max);
    let cut = if found.complete { "" } else { " (cut off)" };
    println!("{name}: {} states{cut}, {:.1} s, {bounds:?}", found.states, started.elapsed().as_secs_f32());
    if let Some((what, path)) = found.violation {
        panic!("{name}: {what}\n{}", told(start, &path, Rules::ALL, bounds));
    }
    assert!(found.complete || long(), "{name}: the world is too large for the short form");
}

/// Explores without one rule, and fails when nothing breaks.
fn breaks<W: Explored>(start: &W, rule: Rule, bounds: &W::Bounds, states_max: usize) {
    let rules = Rules::without(rule);
    let Found { states, violation, .. } = explore(start, rules, bounds, states_max);
    let Some((what, path)) = violation else {
        panic!("without {rule:?} nothing breaks in {states} states: the search does not see it");
    };
    println!("without {rule:?}: {what} ({} steps, {states} states)", path.len());
    if long() {
        println!("{}", told(start, &path, rules, bounds));
    }
}

// E12 E13 P45 fault E3 fault E4 fault E7 fault E9 fault E10 fault E11 S10 I1 I2 I4
#[test]
fn with_every_rule_in_place_a_reader_gets_each_output_once_whatever_fails() {
    let small = SMALL;
    let zombie = outputs::Bounds { zombies: 1, kills: false, ..SMALL };
    let mut worlds = vec![
        ("a crash at any moment", outputs::Bounds { epochs: 2, reads: Reads::OneByOne, ..small }),
        ("a lost answer", outputs::Bounds { starts: 1, lost: 1, any_lost: true, epochs: 2, ..small }),
        ("a lost answer and a crash", outputs::Bounds { lost: 1, ..small }),
        ("a transaction that times out", outputs::Bounds { expiries: 1, lost: 1, ..small }),
        ("two slots", outputs::Bounds { starts: 1, shapes: &[2], epochs: 2, in_flight: 2, ..small }),
        (
            "two slots whose keys do not cross",
            outputs::Bounds {
                starts: 1,
                shapes: &[2],
                epochs: 2,
                in_flight: 2,
                keys_cross: false,
                reads: Reads::Any,
                ..small
            },
        ),
        ("two slots and a lost answer", outputs::Bounds { starts: 1, shapes: &[2], lost: 1, ..small }),
        ("two slots and then one", outputs::Bounds { shapes: &[1, 2], ..small }),
        ("an old generation", outputs::Bounds { epochs: 2, ..zombie }),
        ("an old generation and a lost answer", outputs::Bounds { lost: 1, ..zombie }),
        ("an old generation, and a rescale", outputs::Bounds { shapes: &[1, 2], ..zombie }),
        ("an old generation and a time-out", outputs::Bounds { expiries: 1, ..zombie }),
        ("an old generation and a host crash", outputs::Bounds { starts: 3, crashes: 1, ..zombie }),
        ("a host crash", outputs::Bounds { crashes: 1, epochs: 2, ..small }),
        ("a group that is told again", outputs::Bounds { keepalives: 1, lost: 1, epochs: 2, ..small }),
        ("a group that an old generation tells again", outputs::Bounds { keepalives: 1, ..zombie }),
        (
            "a group that two slots tell again",
            outputs::Bounds { starts: 1, shapes: &[2], keepalives: 1, lost: 1, ..small },
        ),
        ("a store that is emptied", outputs::Bounds { wipes: 1, expiries: 1, ..small }),
        ("an older copy of the store", outputs::Bounds { older_copies: 1, epochs: 2, ..small }),
    ];
    if long() {
        let large = outputs::Bounds { states_max: 4_000_000, ..SMALL };
        worlds.extend([
            ("three starts", outputs::Bounds { starts: 3, lost: 1, epochs: 2, ..large }),
            (
                "three starts, two old generations",
                outputs::Bounds { starts: 3, zombies: 2, kills: false, ..large },
            ),
            (
                "an old generation, a lost answer, a rescale",
                outputs::Bounds { zombies: 1, kills: false, lost: 1, shapes: &[1, 2], ..large },
            ),
            (
                "two lost answers and a time-out",
                outputs::Bounds { lost: 2, expiries: 1, any_lost: true, ..large },
            ),
            (
                "two slots whose keys do not cross, an old generation, any reads",
                outputs::Bounds {
                    zombies: 1,
                    shapes: &[2],
                    keys_cross: false,
                    epochs: 2,
                    reads: Reads::Any,
                    ..large
                },
            ),
            (
                "three starts, an old generation, a lost answer, a time-out, a rescale",
                outputs::Bounds { starts: 3, zombies: 1, lost: 1, expiries: 1, shapes: &[1, 2], ..large },
            ),
            (
                "two slots, two epochs, an old generation",
                outputs::Bounds { zombies: 1, shapes: &[2], epochs: 2, in_flight: 2, ..large },
            ),
        ]);
    }
    for (name, bounds) in worlds {
        sound(&Outputs::new(), name, &bounds, bounds.states_max);
    }
}

// E12 E13 P45 fault E4 fault E7 fault E10 fault E11
#[test]
fn with_every_rule_in_place_direct_transactions_give_each_output_once_whatever_fails() {
    let mut worlds = vec![
        ("direct: an old owner", direct::Bounds { shapes: &[1], in_flight: 2, ..DIRECT }),
        ("direct: an old owner and a lost answer", direct::Bounds { lost: 1, ..DIRECT }),
        ("direct: time-out and lost answer", direct::Bounds { starts: 1, lost: 1, expiries: 1, ..DIRECT }),
        ("direct: a rescale", direct::Bounds { shapes: &[1, 2], partitions: 2, zombies: 0, ..DIRECT }),
        ("direct: an old owner and a rescale", direct::Bounds { shapes: &[1, 2], partitions: 2, ..DIRECT }),
    ];
    if long() {
        let large = direct::Bounds { states_max: 12_000_000, ..DIRECT };
        worlds.extend([
            ("direct: three starts", direct::Bounds { starts: 3, zombies: 2, lost: 1, expiries: 1, ..large }),
            (
                "direct: a rescale and a lost answer",
                direct::Bounds { lost: 1, partitions: 2, shapes: &[1, 2], ..large },
            ),
        ]);
    }
    for (name, bounds) in worlds {
        sound(&Direct::new(), name, &bounds, bounds.states_max);
    }
}

/// The world in which a rule's counterexample is found soonest.
fn world_for(rule: Rule) -> outputs::Bounds {
    let zombie = outputs::Bounds { zombies: 1, kills: false, ..SMALL };
    match rule {
        // One slot owes an epoch while two younger records appear.
        Rule::OwedNamed => outputs::Bounds { epochs: 3, reads: Reads::OneByOne, ..SMALL },
        // Retention must have freed a number, and the late writer's epoch must be ahead of the markers.
        Rule::OnlyHighestRead => outputs::Bounds { starts: 3, epochs: 3, leaps: true, kills: true, ..zombie },
        Rule::StartSyncs => outputs::Bounds { starts: 3, crashes: 1, ..SMALL },
        Rule::RecordDurableFirst => outputs::Bounds { crashes: 1, ..SMALL },
        Rule::EverySlotFenced => outputs::Bounds { shapes: &[2, 1], ..zombie },
        Rule::FencedFirst | Rule::LeaseAfterInit => zombie,
        Rule::MarkerAfterInit => outputs::Bounds { starts: 1, lost: 1, ..SMALL },
        // The late end of one transaction ends half of the next, and then the process dies.
        Rule::ProducerRebuilt => outputs::Bounds { lost: 1, ..SMALL },
        Rule::UntilToken => outputs::Bounds { starts: 1, lost: 1, shapes: &[2], ..SMALL },
        Rule::MarkerInTransaction => SMALL,
        Rule::Barrier => outputs::Bounds { epochs: 2, reads: Reads::OneByOne, shapes: &[2, 1], ..SMALL },
        Rule::LeftoversAscending => outputs::Bounds { epochs: 2, reads: Reads::OneByOne, ..SMALL },
        Rule::SlotsInStep => outputs::Bounds {
            starts: 1,
            shapes: &[2],
            keys_cross: false,
            epochs: 2,
            in_flight: 2,
            reads: Reads::Any,
            ..SMALL
        },
        Rule::OffsetsOfAll => outputs::Bounds { starts: 1, shapes: &[2], ..SMALL },
        Rule::OffsetsInTransaction => outputs::Bounds { epochs: 2, reads: Reads::OneByOne, ..zombie },
        Rule::BehindOutputRefused => {
            outputs::Bounds { older_copies: 1, epochs: 2, reads: Reads::OneByOne, ..SMALL }
        }
        // The group is behind what was published.
        Rule::LostStateRefused => outputs::Bounds { wipes: 1, shapes: &[2], ..SMALL },
        other => unreachable!("{other:?} is not a rule of what lies behind the commit record"),
    }
}

#[test]
fn without_any_single_rule_of_exactly_once_there_is_a_counterexample() {
    for rule in [
        Rule::OwedNamed,
        Rule::OnlyHighestRead,
        Rule::StartSyncs,
        Rule::RecordDurableFirst,
        Rule::EverySlotFenced,
        Rule::FencedFirst,
        Rule::LeaseAfterInit,
        Rule::MarkerAfterInit,
        Rule::UntilToken,
        Rule::ProducerRebuilt,
        Rule::MarkerInTransaction,
        Rule::Barrier,
        Rule::LeftoversAscending,
        Rule::SlotsInStep,
        Rule::OffsetsOfAll,
        Rule::OffsetsInTransaction,
        Rule::BehindOutputRefused,
        Rule::LostStateRefused,
    ] {
        let bounds = world_for(rule);
        breaks(&Outputs::new(), rule, &bounds, bounds.states_max);
    }
}

#[test]
fn without_any_single_rule_of_direct_transactions_there_is_a_counterexample() {
    let lost = direct::Bounds { zombies: 0, lost: 1, ..DIRECT };
    let rescale = direct::Bounds { shapes: &[2, 1], partitions: 2, ..DIRECT };
    for (rule, bounds) in [
        (Rule::IdByPartition, rescale),
        (Rule::FetchAfterInit, DIRECT),
        (Rule::StableFetch, direct::Bounds { zombies: 0, ..DIRECT }),
        (Rule::ProducerRebuilt, lost),
    ] {
        breaks(&Direct::new(), rule, &bounds, bounds.states_max);
    }
}
