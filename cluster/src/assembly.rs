//! When the cluster is complete: a pure state machine, one per process.
//!
//! The failure it survives: a process dies and comes back while the others still gather, so that two of them
//! know it as two different runs. Work would then start with connections that do not belong together.
//!
//! 1. Every process that has all its connections tells process 0 to which runs they lead ([`Action::Ready`]),
//!    again whenever that changes and whenever its connection to process 0 is a new one.
//! 2. Process 0 fixes the list ([`Action::Fix`]) when the newest word of every process is its own list.
//! 3. A process that is told a fixed list other than its own gives up: a run was lost in between.
//!
//! It converges because every change of a connection leads to a new word, and words on one connection keep
//! their order.

use tidegate_recovery::{ProcessIndex, RunId};

/// What happens to the connections of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Both connections to a peer are there, to this run.
    Up(ProcessIndex, RunId),
    /// A connection to a peer is gone.
    Down(ProcessIndex),
    /// A peer's word to process 0.
    Ready(ProcessIndex, Vec<RunId>),
}

/// What a process has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say to process 0 that all connections are there, and to whom.
    Ready(Vec<RunId>),
    /// (Process 0.) The list is complete and the same everywhere.
    Fix(Vec<RunId>),
}

/// What one process knows of the others.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    me: ProcessIndex,
    runs: Vec<Option<RunId>>,
    words: Vec<Option<Vec<RunId>>>,
    fixed: bool,
}

impl Assembly {
    pub(crate) fn new(me: ProcessIndex, run: RunId, processes: usize) -> Assembly {
        let mut runs = vec![None; processes];
        runs[me.0 as usize] = Some(run);
        Assembly { me, runs, words: vec![None; processes], fixed: false }
    }

    /// The runs of all processes, if this process is connected with all.
    pub(crate) fn complete(&self) -> Option<Vec<RunId>> {
        self.runs.iter().copied().collect()
    }

    /// Processes that this one is not connected with.
    pub(crate) fn missing(&self) -> Vec<ProcessIndex> {
        indexes(self.runs.iter().map(Option::is_none))
    }

    /// Processes that have not said that they are connected with all (as process 0 sees it).
    pub(crate) fn unready(&self) -> Vec<ProcessIndex> {
        let complete = self.complete();
        let me = self.me;
        indexes(self.words.iter().map(|word| *word != complete))
            .into_iter()
            .filter(|index| *index != me)
            .collect()
    }

    /// What to do at the beginning: a process alone is complete.
    pub(crate) fn start(&mut self) -> Option<Action> {
        self.next(false)
    }

    pub(crate) fn on(&mut self, event: Event) -> Option<Action> {
        match event {
            Event::Up(peer, run) => {
                self.runs[peer.0 as usize] = Some(run);
                // Its word was about an earlier connection.
                self.words[peer.0 as usize] = None;
                self.next(true)
            }
            Event::Down(peer) => {
                self.runs[peer.0 as usize] = None;
                self.words[peer.0 as usize] = None;
                None
            }
            Event::Ready(peer, runs) => {
                self.words[peer.0 as usize] = Some(runs);
                self.next(false)
            }
        }
    }

    fn next(&mut self, changed: bool) -> Option<Action> {
        if self.fixed {
            return None;
        }
        let runs = self.complete()?;
        if self.me.0 > 0 {
            return changed.then_some(Action::Ready(runs));
        }
        let agreed = self.words.iter().skip(1).all(|word| word.as_ref() == Some(&runs));
        self.fixed = agreed;
        agreed.then_some(Action::Fix(runs))
    }
}

fn indexes(which: impl Iterator<Item = bool>) -> Vec<ProcessIndex> {
    which.enumerate().filter(|(_, is)| *is).map(|(index, _)| ProcessIndex(index as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Processes, their connections and what is on the way between them.
    struct World {
        processes: Vec<Assembly>,
        runs: Vec<RunId>,
        /// Words on the way to process 0, by sender.
        words: Vec<VecDeque<Vec<RunId>>>,
        /// Pairs (low, high) of which the low side has the connection; the high side hears of it next.
        half_open: Vec<(usize, usize)>,
        open: Vec<(usize, usize)>,
        fixed: Option<Vec<RunId>>,
    }

    impl World {
        fn new(processes: usize) -> World {
            let runs: Vec<RunId> = (0..processes as u128).map(RunId).collect();
            let assemblies = (0..processes)
                .map(|index| Assembly::new(ProcessIndex(index as u32), runs[index], processes))
                .collect();
            let words = vec![VecDeque::new(); processes];
            World { processes: assemblies, runs, words, half_open: Vec::new(), open: Vec::new(), fixed: None }
        }

        fn event(&mut self, at: usize, event: Event) {
            match self.processes[at].on(event) {
                Some(Action::Ready(runs)) => self.words[at].push_back(runs),
                Some(Action::Fix(runs)) => {
                    // The property: at this moment every process that is alive has this list, or is about to
                    // learn of a loss that process 0 has not seen either.
                    assert_eq!(at, 0);
                    assert!(self.fixed.is_none(), "fixed twice");
                    for (index, process) in self.processes.iter().enumerate() {
                        if self.runs[index] == runs[index] && process.complete().as_ref() != Some(&runs) {
                            assert!(
                                self.runs != runs,
                                "process {index} has {:?}, the list is {runs:?}",
                                process.complete()
                            );
                        }
                    }
                    self.fixed = Some(runs);
                }
                None => {}
            }
        }

        fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
            let count = self.processes.len();
            (0..count).flat_map(move |low| (low + 1..count).map(move |high| (low, high)))
        }

        /// One possible step, chosen by `choice`; `false` when it was none.
        fn step(&mut self, choice: usize, faults: bool) -> bool {
            let mut steps: Vec<(u8, usize, usize)> = Vec::new();
            for (low, high) in self.pairs() {
                if self.half_open.contains(&(low, high)) {
                    steps.push((1, low, high));
                } else if !self.open.contains(&(low, high)) {
                    steps.push((0, low, high));
                }
            }
            for (sender, words) in self.words.iter().enumerate() {
                if !words.is_empty() {
                    steps.push((2, sender, 0));
                }
            }
            if faults {
                steps.extend((1..self.processes.len()).map(|index| (3, index, 0)));
            }
            if steps.is_empty() {
                return false;
            }
            match steps[choice % steps.len()] {
                (0, low, high) => {
                    self.half_open.push((low, high));
                    let run = self.runs[high];
                    self.event(low, Event::Up(ProcessIndex(high as u32), run));
                }
                (1, low, high) => {
                    self.half_open.retain(|pair| *pair != (low, high));
                    self.open.push((low, high));
                    let run = self.runs[low];
                    self.event(high, Event::Up(ProcessIndex(low as u32), run));
                }
                (2, sender, _) => {
                    let word = self.words[sender].pop_front().unwrap();
                    self.event(0, Event::Ready(ProcessIndex(sender as u32), word));
                }
                (_, index, _) => self.restart(index),
            }
            true
        }

        fn restart(&mut self, index: usize) {
            let run = RunId(self.runs[index].0 + 100);
            self.runs[index] = run;
            let connected: Vec<(usize, usize)> = self.open.iter().chain(&self.half_open).copied().collect();
            self.processes[index] = Assembly::new(ProcessIndex(index as u32), run, self.processes.len());
            self.words[index].clear();
            self.open.retain(|(low, high)| *low != index && *high != index);
            self.half_open.retain(|(low, high)| *low != index && *high != index);
            for (low, high) in connected {
                let other = if low == index {
                    high
                } else if high == index {
                    low
                } else {
                    continue;
                };
                self.event(other, Event::Down(ProcessIndex(index as u32)));
            }
        }
    }

    proptest! {
        #[test] // C3
        fn a_list_is_fixed_only_when_all_processes_have_it(
            processes in 1_usize..5,
            choices in prop::collection::vec(any::<usize>(), 0..60),
        ) {
            let mut world = World::new(processes);
            if let Some(Action::Fix(runs)) = world.processes[0].start() {
                world.fixed = Some(runs);
            }
            for choice in choices {
                if world.fixed.is_some() {
                    break;
                }
                world.step(choice, true);
            }
            // Without further faults it converges.
            let mut rounds = 0;
            while world.fixed.is_none() {
                prop_assert!(world.step(rounds, false), "nothing left to do and nothing fixed");
                rounds += 1;
            }
            prop_assert_eq!(world.fixed.as_ref(), Some(&world.runs));
        }
    }

    #[test]
    fn who_is_missing_is_known() {
        let mut assembly = Assembly::new(ProcessIndex(0), RunId(0), 3);
        assembly.on(Event::Up(ProcessIndex(2), RunId(2)));
        assert_eq!(assembly.missing(), [ProcessIndex(1)]);
        assembly.on(Event::Up(ProcessIndex(1), RunId(1)));
        assert_eq!(assembly.missing(), []);
        assembly.on(Event::Ready(ProcessIndex(1), vec![RunId(0), RunId(1), RunId(2)]));
        assert_eq!(assembly.unready(), [ProcessIndex(2)]);
    }
}
