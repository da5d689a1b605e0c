//! Whether this process may still act for its generation, and whether its peers live.
//!
//! Two failures are survived. A peer that is dead, frozen or cut off is silent: [`Silence`] finds it. And a
//! process that itself stood still for longer than `peer_timeout` (SIGSTOP, a suspended machine) has been
//! given up by its peers and must not commit anything: [`Liveness::check`] finds that, also when the
//! committing thread is the first one that runs again.
//!
//! Silence is measured in time during which this process ran: a standstill of one's own is never counted
//! against a peer, whose beats may lie unread in the socket.

use crate::cause::{Cause, STOOD_STILL};
use crate::clock::since_boot;
use crate::supervisor::Supervisor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_recovery::ErrorClass;

/// How often a beat is sent, as a part of `peer_timeout`.
const BEATS_PER_TIMEOUT: u32 = 8;
/// How often silence is looked at.
const TICKS_PER_TIMEOUT: u32 = 16;

/// Time between two beats.
pub(crate) fn beat_interval(peer_timeout: Duration) -> Duration {
    (peer_timeout / BEATS_PER_TIMEOUT).max(Duration::from_millis(5))
}

/// Time between two looks at the peers and at oneself.
pub(crate) fn tick_interval(peer_timeout: Duration) -> Duration {
    (peer_timeout / TICKS_PER_TIMEOUT).max(Duration::from_millis(5))
}

/// Finds peers that are silent for too long. Pure: time comes in.
#[derive(Debug)]
pub(crate) struct Silence {
    /// A peer is lost after this much silence: less than `peer_timeout`, so that beats and ticks fit in.
    limit: Duration,
    tick_max: Duration,
    last_tick: Duration,
    /// Time that this process was running, as far as the ticks know.
    ran: Duration,
}

impl Silence {
    pub(crate) fn new(peer_timeout: Duration, now: Duration) -> Silence {
        Silence {
            limit: peer_timeout * 8 / 10,
            tick_max: tick_interval(peer_timeout) * 2,
            last_tick: now,
            ran: Duration::ZERO,
        }
    }

    /// Takes the time in and returns how long this process ran so far: the clock of the silences.
    pub(crate) fn tick(&mut self, now: Duration) -> Duration {
        let gap = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        self.ran += gap.min(self.tick_max);
        self.ran
    }

    /// Whether a peer that was last heard at `heard` (a value of [`Silence::tick`]) is lost.
    pub(crate) fn is_lost(&self, heard: Duration) -> bool {
        self.ran.saturating_sub(heard) > self.limit
    }
}

#[derive(Debug)]
struct Inner {
    supervisor: Supervisor,
    peer_timeout: Duration,
    /// When the monitor last ran, in nanoseconds since boot.
    ticked: AtomicU64,
}

/// Handle that says whether this process may still act for its generation.
#[derive(Clone, Debug)]
pub struct Liveness(Arc<Inner>);

impl Liveness {
    pub(crate) fn new(supervisor: Supervisor, peer_timeout: Duration) -> Liveness {
        Liveness(Arc::new(Inner { supervisor, peer_timeout, ticked: AtomicU64::new(nanos(since_boot())) }))
    }

    /// To be asked before every commit: an error says that the generation is dead. A standstill that this
    /// call is the first to notice ends the generation.
    ///
    /// # Errors
    /// The first cause, or the symptom if the cause is not settled yet.
    pub fn check(&self) -> Result<(), Cause> {
        self.check_at(nanos(since_boot()))
    }

    fn check_at(&self, now: u64) -> Result<(), Cause> {
        let gap = Duration::from_nanos(now.saturating_sub(self.0.ticked.load(Ordering::Acquire)));
        if gap > self.0.peer_timeout {
            let cause = self.stood_still(gap);
            self.0.supervisor.report(cause.clone());
            return Err(self.0.supervisor.cause().unwrap_or(cause));
        }
        if self.0.supervisor.leaving() {
            return Err(self.0.supervisor.cause().unwrap_or_else(|| {
                Cause::new(ErrorClass::TryAgain, crate::cause::PEER_LOST, "the generation is ending")
            }));
        }
        Ok(())
    }

    /// Called by the monitor thread in every round. A standstill is reported before the new time is stored,
    /// or another thread's check could slip through in between.
    pub(crate) fn tick(&self) {
        let now = nanos(since_boot());
        // A failed check has reported itself; the monitor goes on to tell the peers.
        let _ = self.check_at(now);
        self.0.ticked.fetch_max(now, Ordering::AcqRel);
    }

    fn stood_still(&self, gap: Duration) -> Cause {
        let text = format!(
            "this process stood still for {:.1} s, longer than peer_timeout ({:.1} s): its peers have given it up",
            gap.as_secs_f64(),
            self.0.peer_timeout.as_secs_f64()
        );
        Cause::new(ErrorClass::TryAgain, STOOD_STILL, text)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    #[test] // C2
    fn a_silent_peer_is_lost_within_the_timeout() {
        let tick = tick_interval(TIMEOUT);
        let mut now = Duration::from_secs(100);
        let mut silence = Silence::new(TIMEOUT, now);
        let heard = silence.tick(now);
        let start = now;
        while !silence.is_lost(heard) {
            now += tick;
            silence.tick(now);
        }
        assert!(now - start <= TIMEOUT, "{:?}", now - start);
        assert!(now - start > TIMEOUT / 2);
    }

    #[test] // fault P8
    fn a_standstill_of_ones_own_is_not_held_against_a_peer() {
        let start = Duration::from_secs(100);
        let mut silence = Silence::new(TIMEOUT, start);
        let heard = silence.tick(start);
        silence.tick(start + TIMEOUT * 20);
        assert!(!silence.is_lost(heard));
    }

    proptest! {
        #[test]
        fn a_peer_that_beats_is_never_lost(jitter in prop::collection::vec(0_u64..60, 1..400)) {
            let mut now = Duration::from_secs(5);
            let mut silence = Silence::new(TIMEOUT, now);
            let mut heard = silence.tick(now);
            let mut since_beat = Duration::ZERO;
            for late_ms in jitter {
                let step = tick_interval(TIMEOUT) + Duration::from_millis(late_ms);
                now += step;
                since_beat += step;
                let ran = silence.tick(now);
                if since_beat >= beat_interval(TIMEOUT) {
                    heard = ran;
                    since_beat = Duration::ZERO;
                }
                prop_assert!(!silence.is_lost(heard));
            }
        }
    }

    #[test] // C2
    fn a_process_that_stood_still_may_not_commit_and_says_so() {
        let supervisor = Supervisor::new();
        let liveness = Liveness::new(supervisor.clone(), TIMEOUT);
        let now = liveness.0.ticked.load(Ordering::Acquire);
        assert_eq!(liveness.check_at(now), Ok(()));
        assert_eq!(liveness.check_at(now + nanos(TIMEOUT)), Ok(()));
        let error = liveness.check_at(now + nanos(TIMEOUT * 2)).unwrap_err();
        assert_eq!(error.code, STOOD_STILL);
        assert!(supervisor.leaving());
        liveness.tick();
        assert_eq!(liveness.check().unwrap_err().code, STOOD_STILL, "dead is dead, also after the next tick");
    }

    #[test]
    fn a_generation_that_ends_may_not_commit() {
        let supervisor = Supervisor::new();
        let liveness = Liveness::new(supervisor.clone(), TIMEOUT);
        supervisor.report(Cause::new(ErrorClass::Data, "X", "why"));
        assert_eq!(liveness.check().unwrap_err().text, "why");
    }
}
