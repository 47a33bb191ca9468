//! Which path two hellos choose, and what is said of one that is not tried.

use super::*;
use crate::control::config::ControlConfig;
use crate::control::greeting::choice::{demand_of, is_elsewhere};
use crate::control::greeting::rungs::Rungs;
use crate::control::hello::{self, Evidence, Identity};
use crate::ground::Incarnation;
use crate::users::UserNumbers;

/// Elsewhere, here, or refused.
fn chosen(theirs: u32, ours: PathWish, is_near: bool) -> Option<bool> {
    let config = ControlConfig::new("b", Incarnation(2), 1);
    let identity = Identity {
        users: UserNumbers::named(1),
        machine: if is_near { "boot" } else { "other" }.into(),
    };
    let mut hello = hello::our_hello(&config, &identity, "a");
    hello.path = theirs as i32;
    let rungs = [Path::Verbs, OTHER].map(|path| Rung { path, lack: None });
    let terms = GreetingTerms {
        own: "a",
        machine: "boot",
        wish: ours,
        is_near: false,
    };
    let refused = |refusal: Refusal| {
        assert_eq!(refusal.status.reason(), catalogue::PATH_REFUSED);
        assert!(!refusal.retry);
    };
    demand_of(&hello, &rungs)
        .and_then(|theirs| is_elsewhere(&hello, theirs, terms))
        .map_err(refused)
        .ok()
}

#[test]
fn demands_and_boots_choose_the_path() {
    let [auto, shm, tcp, rdma, other, unknown] = [0, 1, 2, 3, 9, 17];
    let ours = PathWish::only;
    let table = [
        (auto, PathWish::Auto, Some(true), Some(false)),
        (auto, PathWish::Shm, Some(true), None),
        (auto, PathWish::Tcp, Some(false), Some(false)),
        (shm, PathWish::Auto, Some(true), None),
        (shm, PathWish::Shm, Some(true), None),
        (shm, PathWish::Tcp, None, None),
        (tcp, PathWish::Auto, Some(false), Some(false)),
        (tcp, PathWish::Shm, None, None),
        (tcp, PathWish::Tcp, Some(false), Some(false)),
        (auto, PathWish::Verbs, Some(false), Some(false)),
        (rdma, PathWish::Auto, Some(false), Some(false)),
        (rdma, PathWish::Verbs, Some(false), Some(false)),
        (rdma, PathWish::Tcp, None, None),
        (rdma, PathWish::Shm, None, None),
        (shm, PathWish::Verbs, None, None),
        (tcp, PathWish::Verbs, None, None),
        (other, PathWish::Auto, Some(false), Some(false)),
        (other, ours(OTHER), Some(false), Some(false)),
        (other, PathWish::Verbs, None, None),
        (rdma, ours(OTHER), None, None),
        (auto, ours(OTHER), Some(false), Some(false)),
        (unknown, PathWish::Auto, None, None),
    ];
    for (theirs, ours, near, far) in table {
        assert_eq!(chosen(theirs, ours, true), near, "{theirs} {ours:?} near");
        assert_eq!(chosen(theirs, ours, false), far, "{theirs} {ours:?} far");
    }
}

/// Why nothing is tried, and whether something stands idle for it.
#[test]
fn who_lacks_it_is_named_before_anything_is_tried() {
    let lack = |is_fault| Lack {
        why: "no card".into(),
        is_fault,
    };
    let unable = |own: Option<Lack>, wish, abilities, theirs: Option<&str>| {
        let mut hello = Fake::pair(false, &[])[1].hello("a");
        hello.abilities = abilities;
        hello.lacks = theirs
            .map(|why| proto::Lack {
                transport: Path::Verbs.number(),
                why: why.into(),
            })
            .into_iter()
            .collect();
        let config = ControlConfig::new("a", Incarnation(1), 1);
        let identity = Identity {
            users: UserNumbers::named(1),
            machine: String::new(),
        };
        let judged = hello::judge(&hello, &config, &identity, Evidence::Network);
        let terms = GreetingTerms {
            own: "a",
            machine: "",
            wish,
            is_near: false,
        };
        let mut rungs = Rungs::new(vec![Rung {
            path: Path::Verbs,
            lack: own,
        }]);
        rungs.judge(&judged.expect("well").0, terms);
        let fell_back = rungs
            .agreed(&judged_peer(&hello), Path::Tcp, None)
            .fell_back;
        match rungs.next() {
            Some(_) => None,
            None => Some((rungs.why(), fell_back.is_some())),
        }
    };
    let with = Path::Verbs.ability();
    for wish in [PathWish::Auto, PathWish::Verbs] {
        assert_eq!(unable(None, wish, with, None), None);
        let own = unable(Some(lack(false)), wish, with, None);
        assert_eq!(own, Some(("no RDMA here: no card".into(), false)));
        let (_, is_idle) = unable(Some(lack(true)), wish, with, None).expect("a fault");
        assert!(is_idle, "a card of no use");
        let theirs = unable(None, wish, 0, Some("no library"));
        assert_eq!(theirs, Some(("no RDMA there: no library".into(), true)));
        let (why, _) = unable(None, wish, 0, None).expect("not there");
        assert!(why.contains("release"), "{why}");
    }
    let demanded = unable(None, PathWish::Tcp, with, None);
    assert_eq!(demanded, Some(("TCP is demanded here".into(), false)));
}

fn judged_peer(hello: &proto::Hello) -> PeerHello {
    Fake::pair(false, &[])[0].judge(hello).expect("well").0
}
