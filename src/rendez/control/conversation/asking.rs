//! Asking a peer every so often whether it runs, and what its silence means.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::ground::Incarnation;
use crate::ground::limits::CONTROL_REQUESTS_MAX;
use rendez_proto::{self as proto, envelope::Body};

use super::{Asked, Conversation};
use crate::control::config::ControlConfig;
use crate::control::peer::{Handler, PeerGone};
use crate::control::refusal::Refusal;
use crate::control::rivals::RivalVerdict;
use crate::control::runtime::Runtime;

/// How much more rarely a peer on this machine is asked whether it runs: among many tasks of one machine the questions
/// would be most of what they do.
const PING_EVERY_NEAR: u32 = 4;
/// Of many peers on this machine one is asked in so long at most: a question and its answer take two tasks from their
/// cores, and all of them ask.
const PING_EACH_NEAR: Duration = Duration::from_millis(8);
/// However many there are.
const PING_NEAR_MAX: Duration = Duration::from_secs(1);
/// So that what is due is due when it is looked at.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

impl Conversation {
    /// Asks every so often whether the peer runs, and says so when it stops or starts to answer. Silence proves
    /// nothing, so where a process handle will tell of the end it ends no connection; over TCP nothing else tells of a
    /// machine that is gone, and silence ends it after its time.
    ///
    /// Over TCP only an answer counts, and for the moment of its question: what a peer says by itself does not prove
    /// that it hears. So a way that is broken in one direction is broken for both sides, from one moment on. Where a
    /// process handle tells of the end, only a pause is left to be seen: a peer heard just now is not asked, and all
    /// may take longer.
    pub(super) async fn ask(
        &self,
        runtime: &Runtime,
        config: &ControlConfig,
        handler: &dyn Handler,
    ) -> PeerGone {
        let is_far = self.path.is_far();
        // Silence from before this moment may be ours.
        let mut spared = Instant::now();
        loop {
            let every = match is_far {
                true => config.ping_every,
                false => {
                    let crowd = u32::try_from(self.calls.connected()).unwrap_or(u32::MAX);
                    let in_turn = PING_EACH_NEAR.saturating_mul(crowd).min(PING_NEAR_MAX);
                    in_turn.max(PING_EVERY_NEAR * config.ping_every)
                }
            };
            let began = Instant::now();
            let time = match is_far {
                true if began < spared => every / 4,
                true => {
                    let left = config.lost_after;
                    let left = left.saturating_sub(self.proved.get().elapsed());
                    every.min(left).max(SHORTEST_SLEEP)
                }
                false => every,
            };
            runtime.sleep(time).await;
            if was_kept_from_running(time, began.elapsed(), every) {
                // What came meanwhile is read first. It answers what was asked before, so the peer has the time of
                // another question to prove itself.
                runtime.sleep(every / 4).await;
                spared = Instant::now() + spare_time(every);
            }
            let is_asked = self
                .requests
                .borrow()
                .values()
                .any(|asked| matches!(asked, Asked::Ping(_)));
            let is_silent = is_far || self.heard.get().elapsed() >= every / 2;
            if !is_asked && is_silent {
                self.ping();
            }
            if is_asked
                && self.heard.get().elapsed() >= config.paused_after
                && !self.is_paused.replace(true)
            {
                handler.peer_paused(self.peer, true);
            }
            let is_lost = self.proved.get().elapsed() >= config.lost_after;
            if is_far && is_lost && Instant::now() >= spared {
                let why = format!(
                    "nothing was answered by {} for {:?}",
                    self.hello.task, config.lost_after
                );
                return PeerGone::ConnectionLost(Refusal::later("PEER_LOST", why).status);
            }
        }
    }

    /// Another life of the peer's task wants to connect: has the peer proved since then that it lives? Over a network
    /// it may be gone without a word, so it is asked at once, and when that life comes again the answer is clear.
    pub(crate) fn outlives(&self, other: Incarnation) -> bool {
        if !self.path.is_far() {
            return true;
        }
        let verdict = (self.rivals.borrow_mut()).judge(other, self.proved.get(), Instant::now());
        if verdict == RivalVerdict::Ask {
            self.ping();
        }
        verdict == RivalVerdict::Refuse
    }

    /// Where the peer runs, for people.
    pub(crate) fn whereabouts(&self) -> String {
        let from = rustix::net::getpeername(&self.socket).ok().flatten();
        match (from.map(SocketAddr::try_from), self.hello.process) {
            (Some(Ok(from)), _) => format!("at {from}"),
            (_, Some(process)) => format!("process {process} of this machine"),
            _ => "on this machine".into(),
        }
    }

    fn ping(&self) {
        if self.requests.borrow().len() < CONTROL_REQUESTS_MAX {
            let at = Instant::now();
            let id = self.request(Body::Ping(proto::Ping {}));
            self.requests.borrow_mut().insert(id, Asked::Ping(at));
        }
    }
}

/// True if a sleep of `time` took so long that this process must have been kept from running: another question would
/// have been due.
fn was_kept_from_running(time: Duration, took: Duration, every: Duration) -> bool {
    took >= time + every
}

/// How long a process that was kept from running blames no peer.
fn spare_time(every: Duration) -> Duration {
    every + every / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The failure model says: 3/16 of `failure_detection`, of which an eighth is the time between two questions.
    #[test]
    fn who_did_not_run_spares_its_peers_for_three_sixteenths() {
        for detection in [300, 2_000].map(Duration::from_millis) {
            let every = detection / 8;
            assert_eq!(spare_time(every), detection * 3 / 16);
            // A sleep that ends late by less than the time of a question is an ordinary one.
            let late = |late: Duration| was_kept_from_running(every, every + late, every);
            assert!(!late(Duration::ZERO) && !late(every - Duration::from_nanos(1)));
            assert!(late(every) && late(detection));
        }
    }
}
