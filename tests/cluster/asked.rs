//! Tasks that cannot be asked: every question says why, by a reason and an exit status of its own.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;

use super::support::{Ended, Place, Process, free_ports, text};

const A: &str = "/job:a/replica:0/task:0";

/// Every question; each has its own way to show what it was told.
const QUESTIONS: [&[&str]; 5] = [
    &["ping", "--count", "1"],
    &["stat"],
    &["pending"],
    &["explain"],
    &["dump"],
];

fn serve(place: &Place, spec: &str, more: &[&str]) -> Process {
    let mut arguments = vec!["serve", "--cluster", spec, "--job", "a", "--task", "0"];
    arguments.extend(more);
    let task = place.start(&arguments);
    task.await_said("tasks (");
    task
}

fn ask(place: &Place, question: &[&str], more: &[&str]) -> Ended {
    begin(place, question, more).finish()
}

fn begin(place: &Place, question: &[&str], more: &[&str]) -> Process {
    let mut arguments = question.to_vec();
    arguments.extend(["--patience", "2s"]);
    arguments.extend(more);
    place.start(&arguments)
}

/// Each question ends with this status, for this reason, and none claims that nothing waits.
fn all_refused(place: &Place, more: &[&str], code: i32, reason: &str, texts: &[&str]) {
    let json = [more, &["--json"]].concat();
    // All wait for as long as they may: together, so that a test does not wait ten times.
    let asked = QUESTIONS.map(|question| {
        let more = [more, &json].map(|more| begin(place, question, more));
        (question, more)
    });
    for (question, asked) in asked {
        let [ended, json] = asked.map(Process::finish);
        ended.refused(code, reason, texts);
        assert!(!ended.said.contains("nothing waits"), "{}", ended.said);
        assert!(
            !ended.said.contains("nothing is recorded"),
            "{}",
            ended.said
        );
        let objects = json.objects();
        assert_eq!(objects.len(), 1, "{question:?}: {objects:?}");
        assert_eq!(objects[0]["what"], "unanswered", "{objects:?}");
        assert_eq!(objects[0]["reason"], reason, "{objects:?}");
    }
}

/// Settings of a task that the machine of who asks cannot fulfil, as in a file that tasks elsewhere share.
#[test]
fn what_only_tasks_need_keeps_no_question_from_being_asked() {
    let place = Place::new();
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let _task = serve(&place, &spec, &[]);
    let more = [
        "--cluster",
        &spec,
        "--files-root",
        "no/such/folder",
        "--cores",
        "1000",
        "--devices",
        "require",
        "--device-library",
        "/no/such/library.so",
        "--huge-pages",
        "require",
    ];
    for question in QUESTIONS {
        ask(&place, question, &more).well();
    }
}

#[test]
fn nobody_listens_there() {
    let place = Place::new();
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    all_refused(
        &place,
        &["--cluster", &spec],
        10,
        "CONNECTION_REFUSED",
        &[A, "refused"],
    );
    let nobody = ["unix:@rendez-test-nobody"];
    ask(&place, &["pending"], &nobody).refused(
        10,
        "CONNECTION_REFUSED",
        &["unix:@rendez-test-nobody"],
    );
}

/// The settings of the task that is asked may be those of the task that asks: its address for metrics stays its own.
#[test]
fn a_task_with_metrics_is_asked_by_its_own_settings() {
    let place = Place::new();
    let [port, metrics] = free_ports();
    let settings = format!("metrics = \"127.0.0.1:{metrics}\"\n");
    let settings = place.file("settings.toml", &settings);
    let of_task = ["--config", text(&settings)];
    let spec = format!("a=127.0.0.1:{port}");
    let task = serve(&place, &spec, &of_task);
    for question in QUESTIONS {
        let more = ["--cluster", &spec, "--config", text(&settings)];
        ask(&place, question, &more).well();
    }
    task.stop().well();
}

#[test]
fn a_stopped_process_is_told_from_one_that_is_not_there() {
    let place = Place::new();
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let task = serve(&place, &spec, &[]);
    let cluster = ["--cluster", &*spec];
    ask(&place, QUESTIONS[0], &cluster).well();
    task.signal(Signal::STOP);
    all_refused(&place, &cluster, 11, "GREETING_LATE", &[A, "stopped"]);
    task.signal(Signal::CONT);
    let ended = ask(&place, &["pending"], &cluster).well();
    assert!(ended.said.contains("nothing waits"), "{}", ended.said);
    task.stop().well();
}

#[test]
fn a_secret_that_is_missing_is_told_from_a_wrong_one() {
    let place = Place::new();
    let (secret, guess) = (place.secret("secret"), place.secret("guess"));
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let task = serve(&place, &spec, &["--cluster-secret-file", text(&secret)]);
    let cluster = ["--cluster", &*spec];
    let texts = [A, "the peer has one, this task has none"];
    all_refused(&place, &cluster, 13, "SECRET_MISSING", &texts);
    let with_guess = ["--cluster", &spec, "--cluster-secret-file", text(&guess)];
    all_refused(&place, &with_guess, 14, "SECRET_WRONG", &[A]);
    let with_secret = ["--cluster", &spec, "--cluster-secret-file", text(&secret)];
    for question in QUESTIONS {
        ask(&place, question, &with_secret).well();
    }
    task.stop().well();
    // And the other way round.
    let task = serve(&place, &spec, &[]);
    let texts = [A, "this task has one, the peer has none"];
    all_refused(&place, &with_secret, 13, "SECRET_MISSING", &texts);
    task.stop().well();
}

#[test]
fn tls_on_one_side_only_is_told() {
    let place = Place::new();
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("signed");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["task".into()]).expect("parameters");
    let signed = params.signed_by(&key, &authority).expect("signed");
    let cert = place.secret("cert");
    let (keys, ca) = (place.secret("key"), place.secret("ca"));
    std::fs::write(&cert, signed.pem()).expect("written");
    std::fs::write(&keys, key.serialize_pem()).expect("written");
    std::fs::write(&ca, authority.pem()).expect("written");
    let tls = [
        "--tls-cert",
        text(&cert),
        "--tls-key",
        text(&keys),
        "--tls-ca",
        text(&ca),
    ];
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let bare = ["--cluster", &*spec];
    let mut with_tls = bare.to_vec();
    with_tls.extend(tls);
    let task = serve(&place, &spec, &tls);
    all_refused(&place, &bare, 15, "TLS_REFUSED", &[A]);
    for question in QUESTIONS {
        ask(&place, question, &with_tls).well();
    }
    task.stop().well();
    let task = serve(&place, &spec, &[]);
    all_refused(&place, &with_tls, 15, "TLS_REFUSED", &[A]);
    task.stop().well();
}

#[test]
fn another_task_at_the_address_is_named() {
    let place = Place::new();
    let [port] = free_ports();
    let task = serve(&place, &format!("a=127.0.0.1:{port}"), &[]);
    let other = format!("b=127.0.0.1:{port}");
    let texts = ["/job:b/replica:0/task:0", A];
    all_refused(&place, &["--cluster", &other], 16, "PEER_UNKNOWN", &texts);
    task.stop().well();
}

#[test]
fn something_else_than_rendez_is_told() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let web = std::thread::spawn(move || {
        // One connection for each question, twice.
        for stream in listener.incoming().take(2 * QUESTIONS.len()) {
            let mut stream = stream.expect("accepted");
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            // Until the other side has read it and hung up.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    all_refused(&place, &[&address], 18, "PEER_PROTOCOL", &[&address]);
    web.join().expect("it served all");
}

/// Needs root: only root can become another user.
#[test]
fn another_user_is_told() {
    if !rustix::process::geteuid().is_root() {
        crate::skipped::skipped("only root can ask as another user");
        return;
    }
    let place = Place::new();
    let name = format!("unix:@rendez-test-user-{}", std::process::id());
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let task = serve(&place, &spec, &["--listen", &name]);
    ask(&place, &["ping"], &[&name]).well();
    for question in QUESTIONS {
        let mut arguments = question.to_vec();
        arguments.push(&name);
        let mut command = place.command(&arguments);
        // The folder of this test is not that user's.
        command.current_dir("/").uid(65_534).gid(65_534);
        let ended = Process::start(command).finish();
        ended.refused(17, "PEER_OTHER_USER", &["as user 0", "as user 65534"]);
    }
    task.stop().well();
}

#[test]
fn an_address_is_enough_and_so_are_peers() {
    let place = Place::new();
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let task = serve(&place, &format!("a={address}"), &[]);
    for question in QUESTIONS {
        let ended = ask(&place, question, &[&address]).well();
        let is_quiet = matches!(question[0], "pending" | "explain" | "dump");
        assert!(is_quiet || ended.said.contains(A), "{}", ended.said);
    }
    let peers = format!("[peers]\n\"/job:a/task:0\" = \"{address}\"\n");
    let file = place.file("peers.toml", &peers);
    for question in QUESTIONS {
        ask(&place, question, &["--config", text(&file)]).well();
        ask(
            &place,
            question,
            &["--config", text(&file), "/job:a/task:0"],
        )
        .well();
    }
    let unknown = ask(
        &place,
        &["ping"],
        &["--config", text(&file), "/job:b/task:0"],
    );
    unknown.refused(78, "CLUSTER_TASK_UNDEFINED", &["/job:b", "[peers]", A]);
    let none = ask(&place, &["ping"], &["nowhere"]);
    none.refused(1, "CONTROL_ADDRESS", &["nowhere"]);
    task.stop().well();
}

#[test]
fn who_did_not_answer_is_named_beside_those_who_did() {
    let place = Place::new();
    let [port, dead, gone] = free_ports();
    let spec = format!("a=127.0.0.1:{port};b=127.0.0.1:{dead};c=127.0.0.1:{gone}");
    let task = serve(&place, &spec, &[]);
    let pending = ask(&place, &["pending"], &["--cluster", &spec]);
    let texts = ["/job:b/replica:0/task:0", "so it is with 1 more"];
    pending.refused(10, "CONNECTION_REFUSED", &texts);
    for text in [
        "nothing waits at 1 of 3 tasks",
        "/job:b/replica:0/task:0 cannot be asked",
        "/job:c/replica:0/task:0 cannot be asked",
    ] {
        assert!(pending.said.contains(text), "{text}: {}", pending.said);
    }
    let pinged = ask(&place, &["ping"], &["--cluster", &spec]);
    assert_eq!(pinged.code, Some(10), "{}", pinged.said);
    assert!(
        pinged.said.lines().any(|line| line.starts_with(A)),
        "{}",
        pinged.said
    );
    task.stop().well();
}

#[test]
fn a_visit_is_no_loss() {
    let place = Place::new();
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let task = serve(&place, &format!("a={address}"), &[]);
    for question in QUESTIONS {
        ask(&place, question, &["--cluster", &format!("a={address}")]).well();
    }
    // Who is asked by address is dialled by another name first.
    ask(&place, QUESTIONS[0], &[&address]).well();
    let log = task.stop().well().said;
    for text in ["PEER_LOST", "a peer is gone", "a peer is connected"] {
        assert!(!log.contains(text), "{text}: {log}");
    }
    let warned = log
        .lines()
        .any(|line| line.contains("WARN") && line.contains("observer"));
    assert!(!warned, "{log}");
}
