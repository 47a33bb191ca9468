//! Calls that the desk makes: those of the program, and those by which spans go home.

use std::sync::Arc;

use rendez::ground::Nanos;

use super::Desk;
use crate::agent::shared::{Command, Packed, Token};
use crate::node::NewCall;
use crate::spans::{Home, Span};

impl Desk {
    /// Calls, if it is a command to.
    pub(super) fn call(&mut self, command: Command, now: Nanos) {
        let Command::Call {
            to,
            target,
            deadline,
            packed,
            slot,
            label,
        } = command
        else {
            return;
        };
        let Packed {
            payload,
            references,
            carried,
            mut keeps,
        } = packed;
        keeps.extend(carried);
        let token = Token {
            slot,
            keeps: (!keeps.is_empty()).then(|| Arc::new(keeps)),
            label,
        };
        let call = NewCall {
            token,
            target,
            deadline,
            references,
            payload,
        };
        self.node.call(now, to, call);
    }

    /// Spans go before the answer: on the same key, so that they are there before it.
    pub(super) fn send_home(&mut self, spans: Option<(Home, Vec<Span>)>, now: Nanos) {
        let Some((home, spans)) = spans else {
            return;
        };
        for command in self.shared.reports(home, spans) {
            self.call(command, now);
        }
    }
}
