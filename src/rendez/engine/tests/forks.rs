//! An engine in a child of `fork`, all of whose locks were held when it was forked, by threads that are not in it.

use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Weak;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::*;
use crate::engine::reporters::{Outstanding, Reporter, Sample};
use crate::engine::{Offer, Recv, SendAsync, Step};
use crate::ground::{Shape, catalogue};
use crate::mail::forks;
use crate::memory::HugePagesReport;
use crate::trace::recorder::{Stage, Way as ValueWay};
use rendez_proto::services::StageStat;

/// What the parent of a fork has begun.
struct Begun {
    engine: Engine,
    step: Step,
    recv: Recv,
    send: SendAsync,
    offer: Offer,
}

struct Silent;

impl Reporter for Silent {
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    fn outstanding(&self) -> Vec<Outstanding> {
        Vec::new()
    }

    fn stages(&self) -> Vec<StageStat> {
        Vec::new()
    }
}

fn polled_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(future).poll(&mut context) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

fn kilobyte() -> Tensor {
    Tensor::from_vec(vec![5_u8; 1024], Shape::row(1024).unwrap()).unwrap()
}

fn key(edge: &str) -> Key {
    Key::between("a", "a", edge).unwrap()
}

/// An engine with something that waits at each of its doors.
fn begun() -> Begun {
    let mut config = config("/job:a/task:0");
    (config.shards, config.stage_sampling) = (1, 1);
    (config.parked_bytes, config.parked_bytes_per_step) = (4096, 4096);
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    let engine = Engine::start(config).unwrap();
    let step = engine.step(StepId(1));
    let mut recv = step.recv(&key("later"));
    assert!(polled_once(&mut recv).is_none());
    let filler = engine.step(StepId(2));
    let began = Instant::now();
    let send = loop {
        let mut send = filler.send_async(&key("full"), kilobyte());
        match polled_once(&mut send) {
            None => break send,
            Some(sent) => sent.unwrap(),
        }
        assert!(began.elapsed() < PATIENCE, "it is never full");
    };
    let offer = engine.offer("kept", |_, _| Ok(Vec::new())).unwrap();
    Begun {
        engine,
        step,
        recv,
        send,
        offer,
    }
}

/// In the child: what is not answered as it should be.
fn look(begun: Begun) -> Vec<&'static str> {
    let Begun {
        engine,
        step,
        mut recv,
        mut send,
        offer,
    } = begun;
    let is_forked = |status: Option<Status>| {
        status.is_some_and(|status| status.reason() == catalogue::ENGINE_FORKED)
    };
    let received = polled_once(&mut recv).and_then(Result::err);
    let sent = polled_once(&mut send).and_then(Result::err);
    let offered = engine.offer("other", |_, _| Ok(Vec::new()));
    let reporter: Weak<dyn Reporter> = Weak::<Silent>::new();
    engine.add_reporter(reporter);
    engine.compare_all_clocks();
    step.abort(Status::new(Code::Aborted, "TEST", "in the child"));
    step.finish();
    let late = Status::of(catalogue::CONNECT_DEADLINE, "not in time");
    let error = engine.error_of(Stage::Wire, ValueWay::TcpCopy);
    let answers = [
        ("Recv", is_forked(received)),
        ("SendAsync", is_forked(sent.map(Into::into))),
        ("offer", is_forked(offered.err())),
        ("huge_pages", engine.huge_pages() == HugePagesReport::Off),
        ("metrics_address", engine.metrics_address().is_none()),
        ("compared_clocks", engine.compared_clocks().is_empty()),
        ("error_of", error.is_zero()),
        ("samples", engine.samples().is_empty()),
        ("outstanding", engine.outstanding().is_empty()),
        ("reported_stages", engine.reported_stages().is_empty()),
        (
            "with_cause",
            engine.with_cause(engine.task(), late.clone()) == late,
        ),
    ];
    drop((offer, recv, send, step, engine));
    let wrong = answers.iter().filter(|(_, is_so)| !is_so);
    wrong.map(|(what, _)| *what).collect()
}

#[test]
fn an_engine_in_a_child_of_fork_answers_whatever_is_locked() {
    const CHILD: &str = "RENDEZ_TEST_FORKS";
    if std::env::var_os(CHILD).is_none() {
        let name = "engine::tests::forks::an_engine_in_a_child_of_fork_answers_whatever_is_locked";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", done.status);
        return;
    }
    let begun = begun();
    let inner = Arc::clone(&begun.engine.inner);
    let _held = (
        inner.pool.lock().unwrap(),
        inner.metrics.lock().unwrap(),
        inner.clocks.lock().unwrap(),
        inner.reporters.held(),
        inner.steps.held(),
        inner.wiring.offers.held(),
        inner.wiring.held(),
    );
    forks::pretend();
    let wrong = look(begun);
    if !wrong.is_empty() {
        eprintln!("not as it should be: {wrong:?}");
    }
    // What it holds could be let go of by its own threads alone.
    std::process::exit(i32::from(!wrong.is_empty()));
}
