//! Ending: goodbyes, hang-ups, and when either is done.

use std::future::pending;
use std::os::fd::AsFd;
use std::time::Duration;

use futures_lite::future::or;
use rendez_proto::{self as proto, envelope::Body};
use rustix::event::PollFlags;

use super::Conversation;
use crate::control::config::ControlConfig;
use crate::control::credentials::is_ready;
use crate::control::refusal::clip;

impl Conversation {
    /// Says goodbye; nothing is said after it.
    pub(crate) fn say_bye(&self, reason: &str) {
        self.has_said_bye.set(true);
        self.waiting.borrow_mut().clear();
        self.request(Body::Bye(proto::Bye {
            reason: clip(reason),
        }));
    }

    /// Waits, after our goodbye, until it is written; over a network until the peer has heard it, which it shows by
    /// hanging up: its data connections are others, and their end must not come before the reason.
    pub(crate) async fn parted(&self) {
        let heard = async {
            self.outbox.drained().await;
            if self.path.is_far() {
                pending::<()>().await;
            }
        };
        or(heard, self.ending.wait()).await;
    }

    /// Ends the connection, as if it were lost for this reason, after a pause.
    pub(crate) fn hang_up(&self, why: &str) {
        *self.hang_up_why.borrow_mut() = clip(why);
        self.hung_up.set();
    }

    /// How long a hang-up is put off: over the network until the connection is as old as the longest pause between two
    /// attempts. On this machine always as long: the links of a peer that leaves may end before its goodbye is read.
    pub(super) fn put_off_time(&self, config: &ControlConfig) -> Duration {
        put_off(self.path.is_far(), self.began.elapsed(), config.backoff_max)
    }

    /// Ends the connection for both sides at once.
    pub(crate) fn shut_down(&self) {
        // Fails only if it is over already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// True if the end has begun or the other end of the socket is gone, though we may not have got there yet.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_set()
            || self.hung_up.is_set()
            || self.exited.is_set()
            || is_ready(self.socket.as_fd(), PollFlags::HUP | PollFlags::RDHUP)
    }

    /// True if this side leaves.
    pub(crate) fn has_said_bye(&self) -> bool {
        self.has_said_bye.get()
    }
}

/// As [`Conversation::put_off_time`], of a connection of this age, where the longest pause is so long.
fn put_off(is_far: bool, age: Duration, longest: Duration) -> Duration {
    match is_far {
        true => longest.saturating_sub(age),
        false => longest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The failure model says: after a quarter of a second at most.
    #[test]
    fn a_hang_up_is_put_off_for_a_quarter_of_a_second_at_most() {
        let longest = ControlConfig::new("a", crate::ground::Incarnation(1), 1).backoff_max;
        let of = |is_far, age| put_off(is_far, Duration::from_millis(age), longest).as_millis();
        assert_eq!(
            [0, 100, 250, 9_000].map(|age| of(true, age)),
            [250, 150, 0, 0]
        );
        assert_eq!([0, 100, 250, 9_000].map(|age| of(false, age)), [250; 4]);
    }
}
