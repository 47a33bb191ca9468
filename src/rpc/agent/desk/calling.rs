//! Calls that the desk makes: those of the program, and those by which spans go home.

use std::sync::Arc;

use rendez::ground::Nanos;

use super::Desk;
use crate::agent::packed::{Packed, Shares};
use crate::agent::shared::{CallAnswer, Command, Token, end_span};
use crate::message::Target;
use crate::node::{Ending, NewCall};
use crate::spans::{Home, Span};

impl Desk {
    /// Calls, if it is a command to.
    pub(super) fn call(&mut self, command: Command, now: Nanos) {
        let Command::Call {
            to,
            target,
            deadline,
            packed,
            ticket,
            span,
        } = command
        else {
            return;
        };
        let Packed { payload, shares } = packed;
        let Shares {
            references,
            carried,
            mut keeps,
        } = shares.map_or_else(Shares::default, |shares| *shares);
        // An owner that has started again would wait for the value to be made.
        if let Target::Fetch(rref) = target
            && let Some(fork) = keeps.iter().find_map(|handle| handle.0.fork)
            && self.node.is_gone(fork)
        {
            // What rides along is told first.
            drop(payload);
            let ending = Ending::Lost(crate::error::lost_value(rref));
            end_span(span, &ending);
            return ticket.slot.fill(CallAnswer {
                at: to,
                ending,
                handles: Vec::new(),
            });
        }
        keeps.extend(carried);
        let token = Token {
            ticket,
            keeps: (!keeps.is_empty()).then(|| Arc::new(keeps)),
            span,
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

    /// Gives up what the program has: all of it that goes to one worker at once.
    pub(super) fn give_up(&mut self) {
        if self.given_up.is_empty() {
            return;
        }
        let mut given_up = std::mem::take(&mut self.given_up);
        given_up.sort_unstable_by_key(|(to, ticket)| (*to, Arc::as_ptr(ticket)));
        for one in given_up.chunk_by(|(one, _), (other, _)| one == other) {
            let is_it = |token: &Token| {
                let place = token.ticket.place();
                let found = one.binary_search_by_key(&place, |(_, ticket)| Arc::as_ptr(ticket));
                found.is_ok()
            };
            self.node.cancel(self.now, one[0].0, is_it);
        }
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
