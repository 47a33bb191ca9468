//! Waits: who is found by what, and who is gone afterwards.

use super::*;
use crate::ground::faults;
use crate::mail::wait::WaitCell;
use crate::shard::ids::Id;

const SOURCE: Incarnation = Incarnation(7);

fn cell() -> Arc<WaitCell<Handed>> {
    Arc::default()
}

fn outside(waits: &mut Waits, cell: &Arc<WaitCell<Handed>>) -> Ticket {
    (waits.add_outside(Owed::new(Arc::clone(cell)), None, SOURCE)).expect("room")
}

const fn place(number: u32) -> WaiterId {
    WaiterId::new(number, 0)
}

#[test]
fn a_thread_that_gives_up_is_found_by_its_cell_and_by_no_other() {
    let mut waits = Waits::new(8);
    let (one, other) = (cell(), cell());
    let ticket = outside(&mut waits, &one);
    outside(&mut waits, &other);
    assert_eq!(waits.expected(ticket), Some(SOURCE));
    assert!(waits.set_place(ticket, place(3)));
    assert_eq!(waits.remove_cell(&one), Some(place(3)));
    assert_eq!(waits.remove_cell(&one), None, "it is gone");
    assert!(!waits.set_place(ticket, place(3)), "it waits no more");
    // Its ticket's place is another's now.
    let next = cell();
    let again = outside(&mut waits, &next);
    assert_eq!(again.index, ticket.index);
    assert_eq!(waits.remove_cell(&one), None);
    assert_eq!(waits.len(), 2);
}

#[test]
fn a_neighbour_is_found_by_its_own_ticket_and_a_task_by_its_name() {
    let mut waits = Waits::new(8);
    let [first, second] = [0, 1].map(TaskId::of_row);
    let theirs = waits.add_neighbour(1, 40, SOURCE).expect("room");
    waits.add_neighbour(2, 40, SOURCE).expect("room");
    let away = waits.add_away(3, first, 0).expect("room");
    waits.add_away(3, second, 0).expect("room");
    assert!(waits.set_place(theirs, place(5)));
    assert_eq!(waits.remove_neighbour(1, 41), None);
    assert_eq!(waits.remove_neighbour(1, 40), Some(place(5)));
    assert_eq!(waits.remove_away(first), [(3, away)]);
    assert_eq!(waits.remove_away(first), []);
    assert_eq!(waits.len(), 2);
    assert_eq!(waits.outside(), [], "none of them is a thread");
}

#[test]
fn a_wait_for_which_there_is_no_room_comes_back() {
    let mut waits = Waits::new(1);
    outside(&mut waits, &cell());
    let late = cell();
    let refused = waits.add_outside(Owed::new(Arc::clone(&late)), None, SOURCE);
    assert!(matches!(refused, Err(back) if back.is_to(&late)));
    assert_eq!(waits.add_neighbour(1, 1, SOURCE), None);
    assert_eq!(waits.add_away(1, TaskId::of_row(0), 1), None);
}

#[test]
fn a_leader_takes_its_outcome_once() {
    let mut waits = Waits::new(8);
    waits.lead(SOURCE);
    assert_eq!(waits.led_expects(), SOURCE);
    assert!(!waits.has_led());
    waits.tell_leader(3, Err(faults::shutdown()));
    assert_eq!(waits.take_led().map(|led| led.waking), Some(3));
    assert!(waits.take_led().is_none());
}

/// Each neighbour has tickets of its own: each that gives a receive up is found at once.
#[test]
fn a_neighbour_that_gives_up_is_found_without_a_walk() {
    const WAITING: u32 = 100;
    let mut waits = Waits::new(1000);
    for theirs in 0..WAITING {
        for shard in [1, 3] {
            let ticket = waits.add_neighbour(shard, theirs, SOURCE).expect("room");
            waits.set_place(ticket, place(1000 * u32::from(shard) + theirs));
        }
    }
    for theirs in (0..WAITING).rev() {
        let gone = waits.remove_neighbour(3, theirs);
        assert_eq!(gone, Some(place(3000 + theirs)));
        assert_eq!(waits.remove_neighbour(3, theirs), None);
    }
    assert!(waits.looks.take() <= 2 * u64::from(WAITING));
    assert_eq!(waits.len(), WAITING as usize);
    // Its place is used again, under a ticket of its own.
    let again = waits.add_neighbour(3, 7, SOURCE).expect("room");
    waits.set_place(again, place(5));
    let later = Ticket {
        index: 7,
        generation: 1,
    };
    assert_eq!(waits.remove_neighbour(3, later.packed()), None);
    assert_eq!(waits.remove_neighbour(2, 7), None);
    assert_eq!(waits.remove_neighbour(3, 7), Some(place(5)));
}
