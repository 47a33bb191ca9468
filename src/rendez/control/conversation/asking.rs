//! Asking a peer every so often whether it runs, and what its silence means.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::ground::Incarnation;
use crate::ground::limits::CONTROL_REQUESTS_MAX;
use rendez_proto::{self as proto, envelope::Body};

use super::{Asked, Conversation};
use crate::control::config::ControlConfig;
use crate::control::peer::PeerGone;
use crate::control::refusal::Refusal;
use crate::control::rivals::RivalVerdict;
use crate::control::runtime::Runtime;

/// So that what is due is due when it is looked at.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

impl Conversation {
    /// Asks a peer over TCP every so often whether it runs: nothing else tells of a machine that is gone, and silence
    /// ends the connection after its time. A peer on this machine is not asked: its silence would prove nothing, and
    /// its end is told.
    ///
    /// Only an answer counts, and for the moment of its question: what a peer says by itself does not prove that it
    /// hears. So a way that is broken in one direction is broken for both sides, from one moment on.
    pub(super) async fn ask(&self, runtime: &Runtime, config: &ControlConfig) -> PeerGone {
        if !self.path.is_far() {
            return std::future::pending().await;
        }
        let every = config.ping_every;
        // Silence from before this moment may be ours.
        let mut spared = Instant::now();
        loop {
            let began = Instant::now();
            let time = match began < spared {
                true => every / 4,
                false => {
                    let left = config.lost_after;
                    let left = left.saturating_sub(self.proved.get().elapsed());
                    every.min(left).max(SHORTEST_SLEEP)
                }
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
            if !is_asked {
                self.ping();
            }
            let is_lost = self.proved.get().elapsed() >= config.lost_after;
            if is_lost && Instant::now() >= spared {
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
