//! Credit against a model that keeps plain sums.

use proptest::prelude::*;

use super::super::tests::{FRAMES, LINES, NOW, settings};
use super::{Credit, lines};
use crate::channel::Violation;
use crate::ground::{Incarnation, Nanos};
use crate::wire::Frame;
use crate::wire::message::Hello;

fn credit() -> Credit {
    let mut credit = Credit::new(&settings(Incarnation(1)));
    credit.greet(&Hello {
        line_window: LINES,
        ..Hello::default()
    });
    credit
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Consume,
    Hold(u32),
    Take(u32),
    Tell,
    Spend(u32),
    GiveBack(u16),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        Just(Act::Consume),
        (1..9_u32).prop_map(Act::Hold),
        (0..9_u32).prop_map(Act::Take),
        Just(Act::Tell),
        (1..9_u32).prop_map(Act::Spend),
        (0..20_u16).prop_map(Act::GiveBack),
        (0..900_u64).prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    #[test]
    fn sums_are_told_in_time_and_windows_hold(acts in acts()) {
        let mut credit = credit();
        let mut now = NOW;
        let (mut consumed, mut taken, mut held) = (0_u64, 0_u64, 0_u32);
        let (mut spent, mut returned) = (0_u64, 0_u64);
        // What the peer was told, and since when something is untold.
        let (mut told, mut since) = ((0, 0), None);
        for act in acts {
            match act {
                Act::Consume => {
                    credit.consume(now);
                    consumed += 1;
                    since = since.or(Some(now));
                }
                Act::Hold(lines) if held + lines <= u32::from(LINES) => {
                    prop_assert_eq!(credit.hold(lines), Ok(()));
                    held += lines;
                }
                Act::Hold(lines) => {
                    let mut other = super::Credit { ..credit };
                    prop_assert_eq!(other.hold(lines), Err(Violation::LineCredit));
                }
                Act::Take(lines) => {
                    let lines = lines.min(held);
                    credit.take(now, lines);
                    (taken, held) = (taken + u64::from(lines), held - lines);
                    since = if lines > 0 { since.or(Some(now)) } else { since };
                }
                Act::Tell => {
                    let mut frame = Frame::default();
                    credit.write(&mut frame);
                    prop_assert_eq!(frame.credit(), (consumed as u16, taken as u16));
                    credit.mark_told();
                    (told, since) = ((consumed, taken), None);
                }
                Act::Spend(lines) => {
                    let is_open = u64::from(lines) + spent - returned <= u64::from(LINES);
                    prop_assert_eq!(credit.open() >= lines, is_open);
                    prop_assert_eq!(credit.spend(lines), is_open);
                    spent += if is_open { u64::from(lines) } else { 0 };
                }
                Act::GiveBack(lines) => {
                    let all = returned + u64::from(lines);
                    let mut other = super::Credit { ..credit };
                    let is_owed = all <= spent;
                    prop_assert_eq!(other.give_back(all as u16).is_ok(), is_owed);
                    if is_owed {
                        (credit, returned) = (other, all);
                    }
                }
                Act::Wait(ns) => now = now + ns,
            }
            let is_much = consumed - told.0 >= u64::from(FRAMES / 4)
                || taken - told.1 >= u64::from(LINES / 4);
            let due_at = match since {
                None => Nanos::NEVER,
                Some(_) if is_much => Nanos::ZERO,
                Some(since) => since + 1000,
            };
            prop_assert_eq!(credit.due_at(), due_at);
            prop_assert_eq!(credit.consumed(), consumed);
            prop_assert_eq!((credit.held(), u64::from(credit.out())), (held, spent - returned));
        }
    }
}

#[test]
fn a_body_costs_its_bytes_and_its_frame() {
    assert_eq!([0, 1, 64, 65].map(lines), [1, 2, 2, 3]);
}

#[test]
fn a_new_connection_hears_everything_again_if_there_is_anything() {
    let hello = Hello {
        line_window: 1,
        ..Hello::default()
    };
    let mut credit = credit();
    credit.greet(&hello);
    assert_eq!((credit.due_at(), credit.open()), (Nanos::NEVER, 1));
    credit.consume(NOW);
    credit.mark_told();
    credit.greet(&hello);
    assert_eq!(credit.due_at(), Nanos::ZERO);
    credit.end_epoch();
    assert_eq!((credit.due_at(), credit.consumed()), (Nanos::NEVER, 0));
}
