//! Other users have a share of the greetings, and our own the rest.

use super::*;

#[test]
fn other_users_have_their_share_and_get_it_back() {
    let shared = Arc::new(Shared {
        wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
        orders: Mutex::default(),
        permits: AtomicUsize::new(0),
        others: AtomicUsize::new(0),
        user: 1,
    });
    let enter = |user| Permit::of_user(&shared, user);
    let others: Vec<_> = (0..GREETINGS_MAX).map_while(|_| enter(2)).collect();
    assert_eq!(others.len(), GREETINGS_OF_OTHERS_MAX);
    assert!(enter(3).is_none(), "another user of them");
    let mut own = Vec::new();
    while shared.has_room() {
        own.push(enter(1).expect("room"));
    }
    assert_eq!(own.len(), GREETINGS_MAX - GREETINGS_OF_OTHERS_MAX);
    drop((others, own));
    assert_eq!(shared.permits.load(Ordering::Relaxed), 0);
    assert!(enter(2).is_some());
}
