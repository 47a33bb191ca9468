//! Judgements of hellos.

use super::*;

fn identity() -> Identity {
    Identity {
        users: UserNumbers::named(1000),
        machine: "boot".into(),
    }
}

const fn socket(credentials: &Credentials) -> Evidence<'_> {
    Evidence::Socket {
        credentials,
        has_proved: false,
    }
}

fn credentials(user: u32) -> Credentials {
    Credentials {
        user,
        process: Some(5),
        pidfd: None,
    }
}

fn config() -> ControlConfig {
    ControlConfig::new("a", Incarnation(1), 3)
}

fn hello_of_b() -> proto::Hello {
    our_hello(
        &ControlConfig::new("b", Incarnation(2), 4),
        &identity(),
        "a",
    )
}

#[test]
fn our_own_hello_is_accepted_by_another() {
    let (peer, read_domain) = judge(
        &hello_of_b(),
        &config(),
        &identity(),
        socket(&credentials(1000)),
    )
    .expect("accepted");
    assert!(read_domain);
    let theirs = ControlConfig::new("b", Incarnation(2), 4);
    assert_eq!(
        (peer.task.as_str(), peer.incarnation, peer.shards),
        ("b", Incarnation(2), 4)
    );
    assert_eq!(
        (peer.poll_policy, peer.limits, peer.features),
        (theirs.poll_policy, theirs.limits, theirs.features)
    );
    assert_eq!((peer.user, peer.process), (Some(1000), Some(5)));
}

#[test]
fn the_read_domain_is_one_user_on_one_machine_by_the_kernels_word() {
    let lying = proto::Hello {
        user_id: 1000,
        ..hello_of_b()
    };
    let refusal = judge(&lying, &config(), &identity(), socket(&credentials(1001)))
        .expect_err("another user");
    assert_eq!(
        (refusal.status.code(), refusal.retry),
        (Code::PermissionDenied, false)
    );
    let relayed = proto::Hello {
        machine: "another boot".into(),
        ..hello_of_b()
    };
    assert!(
        !judge(&relayed, &config(), &identity(), socket(&credentials(1000)))
            .expect("let in")
            .1
    );
}

#[test]
fn within_a_machine_only_our_own_user_needs_no_proof() {
    let peer = "127.0.0.1:5".parse().expect("an address");
    let judge = |owner, config: &ControlConfig| {
        judge_owner(owner, peer, config, &identity()).map_err(|refusal| refusal.status)
    };
    for owner in [Owner::User(1000), Owner::Elsewhere] {
        assert_eq!(judge(owner, &config()), Ok(()));
    }
    // Root is another user here as it is at a Unix socket.
    for (owner, text) in [
        (Owner::User(1001), "user 1001"),
        (Owner::User(0), "user 0"),
        (Owner::Unknown, "does not say"),
    ] {
        let status = judge(owner, &config()).expect_err("a stranger");
        assert_eq!(status.reason(), "PEER_OTHER_USER");
        for text in [text, "127.0.0.1:5", "user 1000", "cluster secret"] {
            assert!(status.message().contains(text), "{status}");
        }
    }
}

/// In a user namespace all that have no number are shown as one, which may be our own.
#[test]
fn the_number_of_all_that_have_none_is_no_users() {
    let within = Identity {
        users: UserNumbers::within(65_534, 65_534),
        ..identity()
    };
    let nameless = credentials(65_534);
    let peer = "127.0.0.1:5".parse().expect("an address");
    let judged = [
        judge(&hello_of_b(), &config(), &within, socket(&nameless)).map(drop),
        judge_owner(Owner::User(65_534), peer, &config(), &within),
    ];
    for judged in judged {
        let status = judged.expect_err("it may be another user").status;
        assert_eq!(status.reason(), "PEER_OTHER_USER");
        for text in ["65534", "user namespace", "cluster secret"] {
            assert!(status.message().contains(text), "{status}");
        }
    }
    let all_named = Identity {
        users: UserNumbers::named(65_534),
        ..identity()
    };
    judge(&hello_of_b(), &config(), &all_named, socket(&nameless)).expect("a user like others");
    judge_owner(Owner::User(65_534), peer, &config(), &all_named).expect("a user like others");
}

#[test]
fn the_version_is_judged_before_all_else() {
    for protocol_version in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let foreign = proto::Hello {
            protocol_version,
            ..proto::Hello::default()
        };
        let refusal = judge(&foreign, &config(), &identity(), socket(&credentials(1)))
            .expect_err("another version");
        assert_eq!(refusal.status.reason(), "PEER_VERSION");
        for version in [PROTOCOL_VERSION, protocol_version] {
            let named = format!("version {version}");
            assert!(refusal.status.message().contains(&named), "{refusal:?}");
        }
    }
}

#[test]
fn a_common_secret_makes_a_read_domain_and_the_network_none() {
    let kindred = credentials(1001);
    let proved = Evidence::Socket {
        credentials: &kindred,
        has_proved: true,
    };
    let (peer, read_domain) =
        judge(&hello_of_b(), &config(), &identity(), proved).expect("accepted");
    assert!(read_domain && peer.user == Some(1001));
    let (peer, read_domain) =
        judge(&hello_of_b(), &config(), &identity(), Evidence::Network).expect("accepted");
    assert!(!read_domain && peer.user.is_none() && peer.process.is_none());
}

/// Names are compared as texts: another spelling of a name must not pass for another task.
#[test]
fn a_name_has_one_spelling() {
    let judged = |task: &str, own: &str| {
        let hello = proto::Hello {
            task: task.into(),
            ..hello_of_b()
        };
        let config = ControlConfig::new(own, Incarnation(1), 3);
        judge(&hello, &config, &identity(), Evidence::Network).map(|(peer, _)| peer.task)
    };
    let (full, own) = ("/job:b/replica:0/task:0", "/job:a/replica:0/task:0");
    assert_eq!(judged(full, own), Ok(full.into()));
    for other in [
        "/job:b/task:0",
        "/task:0/job:b",
        "/job:b/task:0/replica:0",
        "/job:b/replica:0/task:00",
        // And that of the task itself.
        "/job:a/task:0",
    ] {
        let refusal = judged(other, own).expect_err("another spelling");
        let status = &refusal.status;
        assert!(!refusal.retry && status.reason() == "PEER_REFUSED");
        for text in ["in full, as /job:", other] {
            assert!(status.message().contains(text), "{status}");
        }
    }
}
