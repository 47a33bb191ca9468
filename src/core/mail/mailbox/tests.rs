//! The lane: sends that wait for a place in the mailbox, and are overtaken by none.

use std::sync::Arc;

use super::*;
use crate::ground::faults;
use crate::mail::pending_send::Permit;

fn mailbox(capacity: usize) -> Arc<Mailbox<()>> {
    let doorbell = Arc::new(Doorbell::new().unwrap());
    Arc::new(Mailbox::new(capacity, doorbell))
}

fn pending_send(mailbox: &Arc<Mailbox<()>>) -> (PendingSend, Arc<SendCell>) {
    let cell = Arc::new(SendCell::new(Tensor::scalar(1u8), None));
    let pending_send = PendingSend {
        key: Key::between("a", "a", "x").unwrap(),
        step: StepId(1),
        is_dead: false,
        deadline: Nanos::NEVER,
        cell: Arc::clone(&cell),
        permit: Permit::take(mailbox, false).unwrap(),
    };
    (pending_send, cell)
}

#[test]
fn who_finds_no_room_stands_in_the_lane_and_is_seen_there() {
    let mailbox = mailbox(2);
    assert!(mailbox.pressure().is_none());
    for count in 0..4 {
        mailbox.send_in_turn(pending_send(&mailbox).0);
        assert_eq!(mailbox.pressure().has_overflow(), count >= 2);
    }
    assert!(mailbox.commands_came());
    assert_eq!(mailbox.commands(), 2);
    // Room among the commands is not for later sends.
    drop(mailbox.next_command());
    mailbox.send_in_turn(pending_send(&mailbox).0);
    assert_eq!(mailbox.commands(), 1);
    drop(mailbox.next_command());
    while let Some(pending_send) = mailbox.next_in_overflow() {
        assert!(mailbox.pressure().has_overflow());
        drop(pending_send);
        mailbox.left_overflow();
    }
    assert!(mailbox.pressure().is_none() && mailbox.is_empty());
}

#[test]
fn a_closed_mailbox_answers_whoever_stands_in_it() {
    let mailbox = mailbox(2);
    let cells: Vec<_> = (0..5)
        .map(|_| {
            let (pending_send, cell) = pending_send(&mailbox);
            mailbox.send_in_turn(pending_send);
            cell
        })
        .collect();
    mailbox.close(&faults::shutdown());
    let (late, cell) = pending_send(&mailbox);
    mailbox.send_in_turn(late);
    for cell in cells.iter().chain([&cell]) {
        let status = cell.outcome.take().unwrap().unwrap_err();
        assert_eq!(status.reason(), "SHUTDOWN");
        assert!(cell.take_tensor().is_some());
    }
    assert!(mailbox.pressure().is_none());
    // No send that stood there keeps the mailbox alive.
    assert_eq!(Arc::strong_count(&mailbox), 1);
}

#[test]
fn what_weighs_too_much_together_is_answered() {
    let mailbox = mailbox(8);
    assert!(mailbox.weigh(0, 0) && mailbox.weigh(15, 100) && mailbox.weigh(10, 100));
    assert!(!mailbox.weigh(1, 100));
    mailbox.unweigh(1);
    mailbox.taken(25, true);
    assert!(!mailbox.pressure().is_none() && !mailbox.pressure().has_overflow());
    mailbox.taken(0, false);
    assert!(mailbox.pressure().is_none());
}
