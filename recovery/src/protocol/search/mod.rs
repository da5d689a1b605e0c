//! Exhaustive search over the commit protocol in a small world.
//!
//! The world: two input partitions of two records each, whose keys cross the processes; one or two processes, chosen
//! anew at every start; up to three starts; old generations that go on later ("zombies"); a host crash that loses any one
//! or all of the entries that were not synced. The machines are the ones that production code runs; every action of
//! each of them is a step of its own, and all interleavings are explored.
//!
//! After every step, on what is visible and on what each possible crash would leave: the highest record names only
//! files that are there and whole, the rows in them are what the record's offsets say, and no offset is below one whose
//! effects were released. Each rule taken away must give a counterexample; with all rules there must be none.
//!
//! Behind the commit record there are two further worlds: [`outputs`] with an outbox, [`direct`] without a store.
//!
//! `TIDEGATE_SEARCH=long` explores larger worlds (minutes).

#![allow(clippy::print_stdout, reason = "it prints how much was explored")]

mod broker;
mod direct;
mod disk;
mod exactly_once;
mod outputs;
mod reads;
mod world;

use super::{Rule, Rules};
use crate::live::AsIs;
use reads::Reads;
use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use world::{Bounds, World};

/// Something to explore: from a state, steps lead to others.
trait Explored: Clone + Hash {
    type Step: Copy + Debug;
    type Bounds: Debug;

    /// Every step that can be taken now.
    fn steps(&self, bounds: &Self::Bounds) -> Vec<Self::Step>;

    /// Takes one; `Err` says what must never happen.
    fn take(&mut self, step: Self::Step, rules: Rules, bounds: &Self::Bounds) -> Result<(), String>;

    /// What must hold in every state.
    fn check(&self) -> Result<(), String>;

    /// What must hold where no step can be taken.
    fn at_rest(&self) -> Result<(), String>;

    /// What a step is about to do, for people.
    fn doing(&self, step: Self::Step) -> String;
}

struct Found<S> {
    states: usize,
    complete: bool,
    violation: Option<(String, Vec<S>)>,
}

/// Explores breadth first, so that a counterexample is as short as they get.
fn explore<W: Explored>(start: &W, rules: Rules, bounds: &W::Bounds, states_max: usize) -> Found<W::Step> {
    let mut seen: HashSet<u64, BuildHasherDefault<AsIs>> = HashSet::default();
    let mut came_from: Vec<(u32, W::Step)> = Vec::new();
    let mut queue: VecDeque<(u32, W)> = VecDeque::from([(u32::MAX, start.clone())]);
    let mut states = 1;
    let way = |came_from: &[(u32, W::Step)], mut at: u32, last: Option<W::Step>| {
        let mut path: Vec<W::Step> = last.into_iter().collect();
        while let Some((before, step)) = came_from.get(at as usize) {
            path.push(*step);
            at = *before;
        }
        path.reverse();
        path
    };
    while let Some((from, world)) = queue.pop_front() {
        let steps = world.steps(bounds);
        if steps.is_empty()
            && let Err(what) = world.at_rest()
        {
            return Found { states, complete: false, violation: Some((what, way(&came_from, from, None))) };
        }
        for step in steps {
            let mut next = world.clone();
            let taken = next.take(step, rules, bounds);
            // 64 bits: with some millions of states, two of them meet with a chance of one in a million.
            let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
            next.hash(&mut hasher);
            let fresh = seen.insert(hasher.finish());
            if let Err(what) = taken.and_then(|()| if fresh { next.check() } else { Ok(()) }) {
                let path = way(&came_from, from, Some(step));
                return Found { states, complete: false, violation: Some((what, path)) };
            }
            if fresh {
                states += 1;
                came_from.push((from, step));
                queue.push_back((came_from.len() as u32 - 1, next));
            }
        }
        if states >= states_max {
            return Found { states, complete: false, violation: None };
        }
    }
    Found { states, complete: true, violation: None }
}

/// What each step of a path did, for people.
fn told<W: Explored>(start: &W, path: &[W::Step], rules: Rules, bounds: &W::Bounds) -> String {
    let mut world = start.clone();
    let mut lines = String::new();
    for step in path {
        lines.push_str(&format!("  {step:?} {}\n", world.doing(*step)));
        // The last step is the one that fails.
        let _ = world.take(*step, rules, bounds);
    }
    lines
}

const SMALL: Bounds = Bounds {
    starts: 2,
    zombies: 1,
    crashes: 1,
    shapes: &[1],
    epochs: 2,
    empty_epochs: 0,
    in_flight: 1,
    server_restarts: false,
    kills: true,
    reads: Reads::Any,
    states_max: 3_000_000,
};

fn long() -> bool {
    std::env::var("TIDEGATE_SEARCH").is_ok_and(|value| value == "long")
}

#[test]
fn with_every_rule_in_place_no_crash_and_no_old_generation_breaks_a_start() {
    let one = Bounds { epochs: 1, ..SMALL };
    let mut worlds = vec![
        ("a crash", Bounds { zombies: 0, reads: Reads::OneByOne, ..SMALL }),
        ("a crash, two processes", Bounds { zombies: 0, shapes: &[2], reads: Reads::FirstReadsAll, ..one }),
        ("an old generation", Bounds { crashes: 0, kills: false, reads: Reads::OneByOne, ..SMALL }),
        (
            "an old generation of two processes",
            Bounds { crashes: 0, kills: false, shapes: &[2, 1], reads: Reads::FirstReadsAll, ..one },
        ),
        (
            "two epochs in flight",
            Bounds { zombies: 0, crashes: 0, in_flight: 2, reads: Reads::OneByOne, ..SMALL },
        ),
        (
            "empty epochs",
            Bounds { crashes: 0, kills: false, empty_epochs: 1, reads: Reads::FirstReadsAll, ..one },
        ),
        ("a server restarts", Bounds { server_restarts: true, reads: Reads::OneByOne, ..one }),
    ];
    if long() {
        let all = Bounds { starts: 3, shapes: &[1, 2], states_max: 15_000_000, ..SMALL };
        worlds
            .push(("three starts, an old generation and a crash", Bounds { epochs: 1, shapes: &[1], ..all }));
        worlds.push((
            "two old generations",
            Bounds { zombies: 2, crashes: 0, shapes: &[1], kills: false, reads: Reads::OneByOne, ..all },
        ));
        worlds.push((
            "two in flight and an old generation",
            Bounds { crashes: 0, in_flight: 2, shapes: &[2, 1], starts: 2, ..all },
        ));
        worlds.push((
            "an old generation that reads further",
            Bounds { crashes: 0, epochs: 4, shapes: &[1], reads: Reads::FirstReadsAll, starts: 2, ..all },
        ));
        worlds.push(("three starts on one and two processes", all));
    }
    for (name, bounds) in worlds {
        let started = std::time::Instant::now();
        let found = explore(&World::new(), Rules::ALL, &bounds, bounds.states_max);
        println!("{name}: {} states{}", found.states, if found.complete { "" } else { " (cut off)" });
        println!("  {:.1} s", started.elapsed().as_secs_f32());
        if let Some((what, path)) = found.violation {
            panic!("{name}: {what}\n{}", told(&World::new(), &path, Rules::ALL, &bounds));
        }
        assert!(found.complete || long(), "{name}: the world is too large for the short form");
    }
}

/// The world in which a rule's counterexample is found soonest.
fn world_for(rule: Rule) -> Bounds {
    let zombie = Bounds { crashes: 0, kills: false, ..SMALL };
    let crash = Bounds { zombies: 0, starts: 1, ..SMALL };
    match rule {
        Rule::CreateIfAbsent => zombie,
        // One in flight, or retention finds the fault before the old generation does.
        Rule::GenerationInNames => zombie,
        Rule::DenseNumbers => Bounds { epochs: 1, empty_epochs: 1, ..zombie },
        // Retention must have freed a number, and the late writer must have read further.
        Rule::CountsOnlyIfHighest => Bounds { epochs: 4, reads: Reads::FirstReadsAll, ..zombie },
        Rule::OnlyHighestRead => Bounds { epochs: 3, reads: Reads::OneByOne, ..zombie },
        Rule::StartDeletesNothing => zombie,
        Rule::RetentionSparesAbove => Bounds { zombies: 0, crashes: 0, starts: 1, in_flight: 2, ..SMALL },
        Rule::RetentionSparesNewer => Bounds { reads: Reads::OneByOne, ..zombie },
        Rule::SegmentSynced | Rule::SegmentNameSynced => crash,
        Rule::StartSyncs => Bounds { starts: 2, epochs: 1, crashes: 0, ..SMALL },
        Rule::RecordSynced | Rule::RecordDurableFirst => crash,
        Rule::LeaseDurable => Bounds { server_restarts: true, epochs: 1, ..SMALL },
        other => unreachable!("{other:?} is a rule of exactly once: see the searches beside this one"),
    }
}

#[test]
fn without_any_single_rule_there_is_a_counterexample() {
    for rule in [
        Rule::CreateIfAbsent,
        Rule::GenerationInNames,
        Rule::DenseNumbers,
        Rule::CountsOnlyIfHighest,
        Rule::OnlyHighestRead,
        Rule::StartDeletesNothing,
        Rule::RetentionSparesAbove,
        Rule::RetentionSparesNewer,
        Rule::SegmentSynced,
        Rule::SegmentNameSynced,
        Rule::StartSyncs,
        Rule::RecordSynced,
        Rule::RecordDurableFirst,
        Rule::LeaseDurable,
    ] {
        let (rules, bounds) = (Rules::without(rule), world_for(rule));
        let found = explore(&World::new(), rules, &bounds, bounds.states_max);
        let Some((what, path)) = found.violation else {
            panic!("without {rule:?} nothing breaks in {} states: the search does not see it", found.states);
        };
        println!("without {rule:?}: {what} ({} steps, {} states)", path.len(), found.states);
        if long() {
            println!("{}", told(&World::new(), &path, rules, &bounds));
        }
    }
}
