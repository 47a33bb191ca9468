//! What no correct master says on the line of its session at a worker: all is answered, and only that session suffers.

use std::time::Duration;

use prost::Message;
use rendez::engine::Engine;
use rendez::ground::{Key, StepId, TaskName, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::server::{Server, Session};
use rendez_proto::services::LineMessage;
use rendez_proto::tensorflow::{
    CleanupGraphRequest, CreateWorkerSessionRequest, DeleteWorkerSessionRequest,
    DeregisterGraphRequest, GraphDef, RegisterGraphResponse, RunGraphRequest,
};

use crate::support::*;

const CREATE_WORKER_SESSION: u32 = 17;
const DELETE_WORKER_SESSION: u32 = 18;
/// What a worker's session is asked on its line.
const REGISTER_GRAPH: u32 = 1;
const DEREGISTER_GRAPH: u32 = 2;
const RUN_GRAPH: u32 = 3;
const CLEANUP_GRAPH: u32 = 4;
const CANCEL_STEP: u32 = 5;
/// What is only told has no number, and no answer.
const TOLD: u64 = 0;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
const HANDLE: &str = "by-hand";

/// A master that speaks by hand.
struct Hand {
    engine: Engine,
    worker: TaskName,
    line: StepId,
    ask: Key,
    tensors: Key,
    answer: Key,
    number: u64,
}

impl Hand {
    /// Begins a session at that server's worker, over the line of that number.
    fn begin(server: &Server, name: &str, line: u64) -> Self {
        let (engine, worker) = stranger(server, name);
        let asked = CreateWorkerSessionRequest {
            session_handle: format!("{HANDLE}-{line}"),
            line,
            ..CreateWorkerSessionRequest::default()
        };
        let payload = asked.encode_to_vec();
        engine
            .call(&worker, CREATE_WORKER_SESSION, &payload, ANSWER)
            .unwrap();
        let (own, there) = (engine.task().to_string(), worker.to_string());
        let between = |from: &str, to: &str, edge: &str| Key::between(from, to, edge).unwrap();
        Self {
            ask: between(&own, &there, "rendez.line.ask"),
            tensors: between(&own, &there, "rendez.line.ask.tensors"),
            answer: between(&there, &own, "rendez.line.answer"),
            line: StepId(line),
            number: 0,
            worker,
            engine,
        }
    }

    fn say(&self, message: &LineMessage, tensors: &[Tensor]) {
        let step = self.engine.step(self.line);
        for (iter, tensor) in (0..).zip(tensors) {
            let at = rendez::ground::FrameIter {
                frame: message.frame,
                iter,
            };
            step.send(&self.tensors.at(at), tensor.clone()).unwrap();
        }
        step.send(&self.ask, bytes(message.encode_to_vec()))
            .unwrap();
    }

    fn hear(&self) -> LineMessage {
        let step = self.engine.step(self.line);
        let answer = step.recv(&self.answer).deadline(ANSWER).wait().unwrap();
        LineMessage::decode(answer.tensor.host().unwrap()).unwrap()
    }

    /// Asks, and gives what was answered.
    fn ask(&mut self, method: u32, body: Vec<u8>, tensors: &[Tensor]) -> LineMessage {
        self.number += 1;
        let message = LineMessage {
            number: self.number,
            method,
            body,
            tensors: tensors.len() as u32,
            frame: self.number,
            ..LineMessage::default()
        };
        self.say(&message, tensors);
        let answer = self.hear();
        assert_eq!(answer.number, self.number, "the answers come in turn");
        answer
    }

    /// Asks in vain, and gives why.
    #[track_caller]
    fn refused(&mut self, method: u32, body: Vec<u8>, tensors: &[Tensor]) -> String {
        let answer = self.ask(method, body, tensors);
        answer.failure.expect("a failure").reason
    }

    fn run(&mut self, graph: &str, step: i64) -> LineMessage {
        let asked = RunGraphRequest {
            graph_handle: graph.to_owned(),
            step_id: step,
            traceparent: String::new(),
        };
        self.ask(RUN_GRAPH, asked.encode_to_vec(), &[])
    }

    /// The line is over, and the worker told so.
    fn await_end(&self) {
        let step = self.engine.step(self.line);
        let ended = step.recv(&self.answer).deadline(ANSWER).wait().unwrap_err();
        assert_ne!(ended.reason(), catalogue::DEADLINE, "{ended}");
    }
}

/// A part as a master cuts it, of a graph that stands on this task alone.
fn part(task: &TaskName) -> GraphDef {
    let mut graph = Draft::new();
    graph.on(&task.to_string()).constant("k", &[1.0]);
    graph.finish()
}

/// A session of a correct client, which must not notice anything.
fn honest(server: &Server) -> Session {
    let mut graph = Draft::new();
    let x = graph.placeholder("x");
    graph
        .on("/job:worker/task:0")
        .node("AddV2", "twice", &[x, x]);
    session(server, graph.finish())
}

fn works(session: &Session) {
    let got = session.run(&[("x", row(&[4.0]))], &["twice"], &[]).unwrap();
    assert_eq!(values(&got[0]), [8.0]);
}

#[test]
fn a_worker_answers_whatever_its_session_is_asked() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let session = honest(&servers[0]);
    works(&session);
    let mut hand = Hand::begin(&servers[1], "/job:observer/task:8", 501);
    // Bytes that are no question, to everything there is and to what there is not.
    for method in 0..=12 {
        for body in [vec![0x0a, 0x7f, 0x41], vec![0xff; 32], vec![0x0f; 16]] {
            let reason = hand.ask(method, body, &[]).failure.map(|it| it.reason);
            let known = [
                catalogue::CALL_MALFORMED,
                catalogue::CALL_UNKNOWN,
                catalogue::GRAPH_MALFORMED,
            ];
            // A graph comes as a tensor: without one there is an empty graph, and that is a part of nothing.
            let is_empty_graph = method == REGISTER_GRAPH;
            assert!(
                is_empty_graph || reason.as_deref().is_some_and(|it| known.contains(&it)),
                "method {method}: {reason:?}"
            );
        }
        works(&session);
    }
    hand.engine.shutdown(Duration::from_millis(100));
    works(&session);
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn parts_and_steps_that_make_no_sense_are_refused_by_name() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let session = honest(&servers[0]);
    let mut hand = Hand::begin(&servers[1], "/job:observer/task:8", 502);
    let whole = part(&hand.worker).encode_to_vec();
    let answer = hand.ask(REGISTER_GRAPH, vec![], &[bytes(&whole[..])]);
    let graph = RegisterGraphResponse::decode(&*answer.body)
        .unwrap()
        .graph_handle;
    // Cut short anywhere a graph is none, or another one: never more than that.
    for len in 1..whole.len() {
        let answer = hand.ask(REGISTER_GRAPH, vec![], &[bytes(&whole[..len])]);
        if let Some(failure) = answer.failure {
            assert!(
                failure.reason.starts_with("GRAPH_") || failure.reason == catalogue::KERNEL_UNKNOWN,
                "{len} bytes: {failure:?}"
            );
        }
    }
    // A step is run once, and known parts alone.
    assert_eq!(
        hand.run("no such graph", 7).failure.unwrap().reason,
        catalogue::WORKER_GRAPH_UNKNOWN
    );
    assert!(hand.run(&graph, 8).failure.is_none());
    assert_eq!(
        hand.run(&graph, 8).failure.unwrap().reason,
        catalogue::STEP_DUPLICATE
    );
    for step in [0, -1, i64::MIN, i64::MAX] {
        assert!(
            hand.run(&graph, step).failure.is_none(),
            "step {step} is as good as any"
        );
    }
    // A message that comes twice, as no engine lets it, is two questions.
    let clean = |step| CleanupGraphRequest { step_id: step }.encode_to_vec();
    for number in [TOLD, TOLD, 4711, 4711] {
        let message = LineMessage {
            number,
            method: CLEANUP_GRAPH,
            body: clean(8),
            ..LineMessage::default()
        };
        hand.say(&message, &[]);
        if number != TOLD {
            assert_eq!(hand.hear().number, number);
        }
    }
    // Steps and graphs that never were.
    for (method, body) in [
        (CLEANUP_GRAPH, clean(4711)),
        (CANCEL_STEP, vec![]),
        (CANCEL_STEP, vec![0x09, 1, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let failure = hand.ask(method, body, &[]).failure;
        assert!(failure.is_none(), "method {method}: {failure:?}");
    }
    let unknown = DeregisterGraphRequest {
        graph_handle: "x".repeat(100_000),
    };
    let reason = hand.refused(DEREGISTER_GRAPH, unknown.encode_to_vec(), &[]);
    assert_eq!(reason, catalogue::WORKER_GRAPH_UNKNOWN);
    works(&session);
    // A session that is deleted hears nothing any more, and keeps nothing.
    let asked = DeleteWorkerSessionRequest {
        session_handle: format!("{HANDLE}-502"),
    };
    let payload = asked.encode_to_vec();
    hand.engine
        .call(&hand.worker, DELETE_WORKER_SESSION, &payload, ANSWER)
        .unwrap();
    let step = hand.engine.step(hand.line);
    for _ in 0..10 {
        let late = RunGraphRequest::default().encode_to_vec();
        let late = LineMessage {
            number: 1,
            method: RUN_GRAPH,
            body: late,
            ..LineMessage::default()
        };
        // Refused here or ignored there: the step has ended.
        let _ = step.send(&hand.ask, bytes(late.encode_to_vec()));
    }
    hand.await_end();
    works(&session);
    assert_eq!(
        servers[1].load().unwrap().worker_sessions,
        1,
        "that of the honest client"
    );
    hand.engine.shutdown(Duration::from_millis(100));
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn what_is_no_message_ends_one_session_and_no_other() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let session = honest(&servers[0]);
    let promise = |tensors: u32| LineMessage {
        number: 1,
        method: REGISTER_GRAPH,
        tensors,
        ..LineMessage::default()
    };
    let long = LineMessage {
        body: vec![0; 1 << 20],
        ..LineMessage::default()
    };
    let frames = [
        vec![0xff; 64],
        // A length beyond every memory, and one beyond the end.
        vec![0x22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        vec![0x22, 0x7f],
        promise(u32::MAX).encode_to_vec(),
        promise(1 << 13).encode_to_vec(),
        long.encode_to_vec(),
    ];
    for (frame, line) in frames.into_iter().zip(600..) {
        let hand = Hand::begin(&servers[1], &format!("/job:observer/task:{line}"), line);
        // A part whose tensor never comes waits here, and ends with the line.
        hand.say(&promise(1), &[]);
        let step = hand.engine.step(hand.line);
        step.send(&hand.ask, bytes(&frame[..])).unwrap();
        hand.await_end();
        until("the session is gone", || {
            servers[1].load().unwrap().worker_sessions == 1
        });
        works(&session);
        hand.engine.shutdown(Duration::from_millis(100));
    }
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}
