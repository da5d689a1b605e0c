//! What freezes and fails for a while: the destination, the store, commits, open transactions.

use crate::store::StoreModel;
use rand::Rng;
use rand::rngs::SmallRng;
use tidegate_operators::memory::{MemoryBroker, MemoryOutput};
use tidegate_recovery::TopicPartition;

/// What is frozen, failing or open at the moment.
pub(super) struct Trouble {
    broker: MemoryBroker,
    output: MemoryOutput,
    store: StoreModel,
    names: Vec<TopicPartition>,
    frozen: bool,
    stuck_store: bool,
    failing_commits: bool,
    open: Vec<bool>,
}

impl Trouble {
    /// All is calm.
    pub(super) fn new(
        broker: &MemoryBroker,
        output: &MemoryOutput,
        store: &StoreModel,
        names: &[TopicPartition],
    ) -> Trouble {
        Trouble {
            broker: broker.clone(),
            output: output.clone(),
            store: store.clone(),
            names: names.to_vec(),
            frozen: false,
            stuck_store: false,
            failing_commits: false,
            open: vec![false; names.len()],
        }
    }

    /// Something begins to fail, or works again.
    pub(super) fn change(&mut self, random: &mut SmallRng) {
        match random.random_range(0..8) {
            0 | 1 => {
                self.frozen = !self.frozen;
                self.output.freeze(self.frozen);
            }
            2 | 3 => {
                self.stuck_store = !self.stuck_store;
                self.store.freeze(self.stuck_store);
            }
            4 | 5 => {
                self.failing_commits = !self.failing_commits;
                self.broker.fail_commits(self.failing_commits.then_some("the coordinator is away"));
            }
            _ => {
                let partition = random.random_range(0..self.names.len());
                self.open[partition] = !self.open[partition];
                if self.open[partition] {
                    self.broker.open_transaction(&self.names[partition]);
                } else {
                    self.broker.close_transaction(&self.names[partition]);
                }
            }
        }
    }

    /// All works again.
    pub(super) fn calm(&mut self) {
        self.frozen = false;
        self.stuck_store = false;
        self.failing_commits = false;
        self.output.freeze(false);
        self.store.freeze(false);
        self.broker.fail_commits(None);
        for (open, name) in self.open.iter_mut().zip(&self.names) {
            if std::mem::take(open) {
                self.broker.close_transaction(name);
            }
        }
    }
}
