//! Which task finds which push, and which may take it.

use super::*;
use rendez::ground::Incarnation;

fn task(job: &str) -> TaskName {
    TaskName::parse(&format!("/job:{job}/task:0")).expect("a name")
}

fn offer(pusher: &str, to: &str, holds: Duration) -> Offer {
    Offer {
        pusher: pusher.into(),
        to: task(to),
        address: format!("at {pusher}"),
        until: Instant::now() + holds,
    }
}

const LONG: Duration = Duration::from_secs(3600);

/// The pusher found for a task, at its own address.
fn found(board: &Board, to: &str) -> Option<String> {
    let (pusher, address) = board.find(&task(to))?;
    assert_eq!(address, format!("at {pusher}"));
    Some(pusher)
}

#[test]
fn the_latest_push_to_a_task_is_found_until_it_is_withdrawn() {
    let board = Board::default();
    assert_eq!(found(&board, "b"), None);
    for (pusher, to) in [("one", "b"), ("two", "b"), ("three", "c")] {
        board.put(offer(pusher, to, LONG)).expect("room");
    }
    assert_eq!(found(&board, "b").as_deref(), Some("two"));
    board.withdraw("nobody");
    board.withdraw("two");
    assert_eq!(found(&board, "b").as_deref(), Some("one"));
    board.withdraw("one");
    assert_eq!(found(&board, "b"), None);
    assert_eq!(found(&board, "c").as_deref(), Some("three"));
}

#[test]
fn an_offer_replaces_the_one_before_it_of_the_same_pusher() {
    let board = Board::default();
    board.put(offer("one", "b", LONG)).expect("room");
    board.put(offer("one", "c", LONG)).expect("room");
    assert_eq!(found(&board, "b"), None);
    assert_eq!(found(&board, "c").as_deref(), Some("one"));
}

#[test]
fn what_is_not_repeated_ends_and_makes_room() {
    let board = Board::default();
    for at in 0..OFFERED_PUSHES_MAX {
        let over = offer(&format!("killed {at}"), "b", Duration::ZERO);
        board.0.lock().expect("whole").push(over);
    }
    assert_eq!(found(&board, "b"), None);
    for at in 0..OFFERED_PUSHES_MAX {
        let put = board.put(offer(&format!("pusher {at}"), "b", LONG));
        put.unwrap_or_else(|status| panic!("{at}: {status}"));
    }
    let refused = board.put(offer("one more", "b", LONG)).unwrap_err();
    assert_eq!(refused.reason(), catalogue::PUSH_LIMIT);
    // One that is there may repeat its offer.
    board.put(offer("pusher 0", "b", LONG)).expect("its place");
    assert_eq!(found(&board, "b").as_deref(), Some("pusher 0"));
}

fn call(from: &str, payload: Vec<u8>) -> Incoming {
    let mut call = Incoming::within(from.into(), Incarnation(1), payload, LONG);
    call.method = TAKE;
    call
}

fn take(takes: &Takes, from: &str, to: &str, token: u64) -> Result<Vec<u8>, Status> {
    let taking = Taking {
        to: to.into(),
        token,
    };
    takes.answer(&call(from, written(&taking)?))
}

#[track_caller]
fn refused(taken: Result<Vec<u8>, Status>, reason: &str, text: &str) {
    let status = taken.expect_err("it is refused");
    assert_eq!(status.reason(), reason);
    assert!(status.message().contains(text), "{status}");
}

const B: &str = "/job:b/task:0";
const VISITOR: &str = "/job:visitor/task:7";

#[test]
fn the_first_takes_it_and_may_ask_again_and_no_other_token_does() {
    let (told, takers) = mpsc::channel();
    let takes = Takes::new(task("b"), told);
    refused(
        take(&takes, VISITOR, "/job:c/task:0", 5),
        catalogue::PUSH_ELSEWHERE,
        "is for /job:b",
    );
    for payload in [&b""[..], b"{}", b"{\"to\":\"/job:b/task:0\",\"token\":-1}"] {
        refused(
            takes.answer(&call(VISITOR, payload.to_vec())),
            catalogue::CALL_MALFORMED,
            "",
        );
    }
    assert!(take(&takes, "no name", B, 5).is_err());
    assert_eq!(takers.try_recv(), Err(mpsc::TryRecvError::Empty));

    take(&takes, VISITOR, B, 6).expect("it is the first");
    let first = TaskName::parse(VISITOR).expect("a name");
    assert_eq!(takers.try_recv(), Ok(first));
    // Its answer may have been lost; another token is refused, also from the task that has taken it.
    take(&takes, VISITOR, B, 6).expect("it is the same");
    for from in [VISITOR, B] {
        let taken = take(&takes, from, B, 7);
        refused(taken, catalogue::PUSH_ELSEWHERE, "another takes");
    }
    assert_eq!(takers.try_recv(), Err(mpsc::TryRecvError::Empty));
}

#[test]
fn a_push_that_has_ended_is_taken_by_nobody() {
    let (told, takers) = mpsc::channel();
    let takes = Takes::new(task("b"), told);
    drop(takers);
    for token in [6, 7, 6] {
        let taken = take(&takes, VISITOR, B, token);
        refused(taken, catalogue::PUSH_ELSEWHERE, "has ended");
    }
}

/// Settings of a whole cluster, with one address for the metrics of a machine.
#[test]
fn an_exchange_serves_no_metrics() {
    let bound = || std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let (other, free) = (bound(), bound());
    let [other_at, free_at] = [&other, &free].map(|socket| {
        let address = socket.local_addr().expect("an address");
        address.to_string()
    });
    drop(free);
    let flags = [
        ("cluster", format!("a={free_at}")),
        ("task", "/job:a/task:0".into()),
        ("metrics", other_at),
        ("shards", "1".into()),
        ("share_cores", "true".into()),
        ("arena_segment_bytes", "4MiB".into()),
    ];
    let settings = SettingArgs {
        file: None,
        flags: flags.to_vec(),
    };
    let patience = Duration::from_secs(5);
    let presence = Presence::enter(&settings, patience, &Services::new(), false);
    let presence = presence.expect("the address is not asked for");
    assert_eq!(presence.engine().metrics_address(), None);
}
