//! Each ticket once, in time, by its owner; and each refusal by its name, to peers that can sign.

use super::*;
use crate::control::preamble::Ticket;
use crate::control::secret::Session;

const LIFE: Incarnation = Incarnation(7);
const ID: [u8; 16] = [3; 16];

fn session(byte: u8) -> Session {
    Session::new(&[byte; 32])
}

fn ticket(channel: u32) -> Ticket {
    Ticket {
        incarnation: LIFE,
        channel,
        id: ID,
        expires_ms: 1000,
    }
}

fn signed(ticket: Ticket) -> [u8; TICKET] {
    ticket.emit(&session(1).sign_ticket(&ticket.signed(), &[]))
}

fn tickets() -> (Tickets<u32>, Rc<Signal>) {
    let mut tickets = Tickets::new(LIFE);
    let complete = tickets.issue(ID, 2, Some(session(1)), 1000).expect("room");
    (tickets, complete)
}

#[test]
fn all_channels_make_a_set() {
    let (mut tickets, complete) = tickets();
    for channel in [1, 0] {
        assert!(!complete.is_set());
        let place = tickets
            .judge(&signed(ticket(channel)), &[], 999)
            .expect("good");
        tickets.put(place, channel);
    }
    assert!(complete.is_set());
    assert_eq!(tickets.take(ID), Some(vec![0, 1]));
    let late = tickets.judge(&signed(ticket(0)), &[], 999);
    assert_eq!(late, Err(Verdict::ReusedTicket));
}

#[test]
fn a_ticket_is_good_once_and_in_time() {
    let (mut tickets, _) = tickets();
    let bytes = signed(ticket(0));
    assert_eq!(
        tickets.judge(&bytes, &[], 1000),
        Err(Verdict::ExpiredTicket)
    );
    let place = tickets.judge(&bytes, &[], 0).expect("good");
    tickets.put(place, 5);
    assert_eq!(tickets.judge(&bytes, &[], 0), Err(Verdict::ReusedTicket));
    assert_eq!(tickets.take(ID), None, "it was not complete");
    assert_eq!(tickets.judge(&bytes, &[], 0), Err(Verdict::ExpiredTicket));
}

#[test]
fn what_its_owner_did_not_sign_is_unknown() {
    let (mut tickets, _) = tickets();
    let changes: [fn(&mut Ticket); 4] = [
        |ticket| ticket.incarnation = Incarnation(8),
        |ticket| ticket.channel = 2,
        |ticket| ticket.id = [4; 16],
        |ticket| ticket.expires_ms = 2000,
    ];
    for change in changes {
        let mut other = ticket(0);
        change(&mut other);
        assert_eq!(
            tickets.judge(&signed(other), &[], 0),
            Err(Verdict::UnknownTicket)
        );
    }
    let forged = ticket(0).emit(&session(2).sign_ticket(&ticket(0).signed(), &[]));
    let bare = ticket(0).emit(&[0; 32]);
    for bytes in [forged, bare, [0; TICKET]] {
        assert_eq!(tickets.judge(&bytes, &[], 0), Err(Verdict::UnknownTicket));
        assert_eq!(
            tickets.judge(&bytes, &[], 5000),
            Err(Verdict::UnknownTicket)
        );
    }
    assert_eq!(tickets.take(ID), None);
    assert_eq!(
        tickets.judge(&forged, &[], 0),
        Err(Verdict::UnknownTicket),
        "now as before"
    );
}

#[test]
fn sets_and_memories_are_bounded() {
    let mut tickets: Tickets<u32> = Tickets::new(LIFE);
    let id = |index: usize| (index as u128).to_le_bytes();
    for index in 0..TICKET_SETS_MAX {
        assert!(tickets.issue(id(index), 1, None, 1).is_some());
    }
    assert!(tickets.issue(ID, 1, None, 1).is_none());
    assert!(tickets.issue(id(0), 1, None, 1).is_none(), "twice");
    for index in 0..3 * TICKETS_ENDED_MAX {
        let _ = tickets.take(id(index));
        let _ = tickets.issue(id(index + TICKET_SETS_MAX), 1, None, 1);
    }
    assert_eq!(tickets.ended.len(), TICKETS_ENDED_MAX);
}

#[test]
fn an_abandoned_set_is_over() {
    let shared: Rc<RefCell<Tickets<u32>>> = Rc::new(RefCell::new(Tickets::new(LIFE)));
    let awaited = Awaited::begin(&shared, 1, None, 1000).expect("room");
    let id = awaited.id;
    drop(awaited);
    let bytes = Ticket { id, ..ticket(0) }.emit(&[0; 32]);
    assert_eq!(
        shared.borrow().judge(&bytes, &[], 0),
        Err(Verdict::ExpiredTicket)
    );
}
