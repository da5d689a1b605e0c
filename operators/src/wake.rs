//! How an operator wakes itself later, without leaving a trail of timers.
//!
//! An operator is activated for many reasons. If it set a timer at every activation, each timer would set the next
//! one, and their number would only grow: so it sets one only when none goes off early enough.

use crate::clock::Clock;
use crate::context::WorkerContext;
use crate::time::Time;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use timely::dataflow::Scope;
use timely::scheduling::Activator;

/// Wakes one operator.
pub struct WakeUp {
    activator: Activator,
    clock: Arc<dyn Clock>,
    /// A worker without a clock of its own (in the simulation) has no timers: later is at once.
    has_timers: bool,
    due: Option<Duration>,
}

impl WakeUp {
    /// For the operator at `address`.
    pub fn new(scope: Scope<'_, Time>, address: Rc<[usize]>, context: &WorkerContext) -> WakeUp {
        WakeUp {
            activator: scope.worker().activator_for(address),
            clock: context.clock().clone(),
            has_timers: scope.worker().timer().is_some(),
            due: None,
        }
    }

    /// What activates the operator, for whoever else wakes it.
    pub fn activator(&self) -> &Activator {
        &self.activator
    }

    /// Wakes it at once.
    pub fn now(&self) {
        self.activator.activate();
    }

    /// Wakes it after `delay` at the latest.
    pub fn after(&mut self, delay: Duration) {
        if delay.is_zero() || !self.has_timers {
            self.activator.activate();
            return;
        }
        let now = self.clock.now();
        let due = now.saturating_add(delay);
        if self.due.is_none_or(|set| set <= now || set > due) {
            self.due = Some(due);
            self.activator.activate_after(delay);
        }
    }
}
