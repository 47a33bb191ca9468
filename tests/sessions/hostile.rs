//! Bytes that no correct peer sends, to every service and on every line: all are answered, and no task falls.

use std::time::Duration;

use prost::Message;
use rendez::engine::Engine;
use rendez::ground::{Key, StepId, catalogue};
use rendez_dataflow::server::Server;
use rendez_proto::services::{LineMessage, OpenLineRequest};
use rendez_proto::tensorflow::{
    CleanupAllRequest, CreateSessionResponse, CreateWorkerSessionRequest, GetStatusResponse,
    RunOptions, RunStepRequest,
};

use crate::support::*;

/// The services of workers and masters.
const METHODS: [u32; 5] = [16, 17, 18, 19, 22];
const GET_STATUS: u32 = 16;
const CREATE_WORKER_SESSION: u32 = 17;
const CLEANUP_ALL: u32 = 19;
const OPEN_LINE: u32 = 22;

/// Questions on the line of a master.
const CREATE: u32 = 1;
const RUN: u32 = 3;

/// A peer that may call, and has no manners.
const STRANGER: &str = "/job:observer/task:7";

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// Bytes that are no message: a length beyond the end, wire types that are none, a broken varint, noise.
fn garbage() -> Vec<Vec<u8>> {
    let mut noise = vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f];
    noise.extend((0..5000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8));
    vec![
        vec![0x0a, 0x7f, 0x41],
        vec![0x0f; 16],
        vec![0xff; 32],
        noise,
    ]
}

#[test]
fn services_answer_whatever_they_are_sent() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let (engine, task) = stranger(&servers[0], STRANGER);
    let call = |method: u32, payload: &[u8]| engine.call(&task, method, payload, ANSWER);
    for method in METHODS {
        for payload in garbage() {
            let status = call(method, &payload).unwrap_err();
            assert_eq!(
                status.reason(),
                catalogue::CALL_MALFORMED,
                "service {method}: {status}"
            );
        }
    }
    // What is well formed and makes no sense.
    let empty = call(CREATE_WORKER_SESSION, &[]).unwrap_err();
    assert!(
        empty.message().ends_with("Session must be non-empty."),
        "{empty}"
    );
    let reopen = CreateWorkerSessionRequest {
        session_handle: "x".repeat(1000),
        reopen: true,
        ..Default::default()
    };
    let unknown = call(CREATE_WORKER_SESSION, &reopen.encode_to_vec()).unwrap_err();
    assert_eq!(unknown.reason(), catalogue::WORKER_SESSION_UNKNOWN);
    let foreign = CreateWorkerSessionRequest {
        session_handle: "mine".into(),
        master_task: "/job:worker/replica:0/task:0".into(),
        ..Default::default()
    };
    let foreign = call(CREATE_WORKER_SESSION, &foreign.encode_to_vec()).unwrap_err();
    assert_eq!(foreign.reason(), catalogue::SESSION_HANDLE);
    // And it does its work as before.
    let status = GetStatusResponse::decode(&*call(GET_STATUS, &[]).unwrap()).unwrap();
    assert_eq!(
        status.device_attributes[0].name,
        "/job:ps/replica:0/task:0/device:CPU:0"
    );
    call(CLEANUP_ALL, &CleanupAllRequest::default().encode_to_vec()).unwrap();
    await_no_session(&servers);
    engine.shutdown(Duration::from_millis(100));
    stop_all(&servers);
}

/// A line to the master, as a client has it, spoken on by hand.
struct Hand {
    engine: Engine,
    line: StepId,
    ask: Key,
    answer: Key,
}

impl Hand {
    fn open(server: &Server, line: u64) -> Self {
        let (engine, task) = stranger(server, STRANGER);
        engine
            .call(
                &task,
                OPEN_LINE,
                &OpenLineRequest { line }.encode_to_vec(),
                ANSWER,
            )
            .unwrap();
        let (own, there) = (engine.task().to_string(), task.to_string());
        Self {
            ask: Key::between(&own, &there, "rendez.line.ask").unwrap(),
            answer: Key::between(&there, &own, "rendez.line.answer").unwrap(),
            line: StepId(line),
            engine,
        }
    }

    fn ask(&self, message: &LineMessage) -> LineMessage {
        let step = self.engine.step(self.line);
        step.send(&self.ask, bytes(message.encode_to_vec()))
            .unwrap();
        let answer = step.recv(&self.answer).deadline(ANSWER).wait().unwrap();
        LineMessage::decode(answer.tensor.host().unwrap()).unwrap()
    }
}

#[test]
fn a_master_answers_whatever_comes_on_a_line() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let hand = Hand::open(&servers[0], 77);
    let mut number = 0;
    for method in 0..=20 {
        for body in garbage() {
            number += 1;
            let message = LineMessage {
                number,
                method,
                body,
                ..LineMessage::default()
            };
            let answer = hand.ask(&message);
            assert_eq!(answer.number, number, "method {method}");
            let failure = answer.failure.expect("a failure");
            let expected = [
                catalogue::CALL_MALFORMED,
                catalogue::CALL_UNKNOWN,
                catalogue::SERVICE_FAILED,
            ];
            assert!(
                expected.contains(&failure.reason.as_str()),
                "method {method}: {failure:?}"
            );
        }
        // Well formed, and of nothing.
        number += 1;
        let empty = LineMessage {
            number,
            method,
            ..LineMessage::default()
        };
        // An empty graph, all devices, and a reset are things to ask for.
        if ![1, 11, 12].contains(&method) {
            assert!(hand.ask(&empty).failure.is_some(), "method {method}");
        }
    }
    // A trace that is none is left out, and counted; the step is not.
    let ask = |number: u64, method: u32, body: Vec<u8>| {
        hand.ask(&LineMessage {
            number,
            method,
            body,
            ..LineMessage::default()
        })
    };
    let created = ask(number + 1, CREATE, vec![]);
    let created = CreateSessionResponse::decode(&*created.body).unwrap();
    let refused = || servers[0].engine().unwrap().refused_traceparents();
    for (at, text) in ["00", "x", &"0".repeat(60_000), "00-ä"].iter().enumerate() {
        let asked = RunStepRequest {
            session_handle: created.session_handle.clone(),
            options: Some(RunOptions {
                traceparent: (*text).to_owned(),
                ..RunOptions::default()
            }),
            ..RunStepRequest::default()
        };
        let plain = RunStepRequest {
            options: None,
            ..asked.clone()
        };
        let next = number + 2 + 2 * at as u64;
        let answers = [(next, asked), (next + 1, plain)]
            .map(|(number, asked)| ask(number, RUN, asked.encode_to_vec()).failure);
        assert_eq!(answers[0], answers[1], "it is run as without");
        assert_eq!(refused(), at as u64 + 1);
    }
    // What is no message at all ends the line, and only that.
    let step = hand.engine.step(hand.line);
    step.send(&hand.ask, bytes(vec![0xff; 64])).unwrap();
    let ended = step.recv(&hand.answer).deadline(ANSWER).wait().unwrap_err();
    assert_ne!(ended.reason(), catalogue::DEADLINE, "{ended}");
    let other = Hand::open(&servers[1], 78);
    let many = LineMessage {
        number: 1,
        method: 3,
        tensors: u32::MAX,
        ..LineMessage::default()
    };
    let step = other.engine.step(other.line);
    step.send(&other.ask, bytes(many.encode_to_vec())).unwrap();
    let ended = step
        .recv(&other.answer)
        .deadline(ANSWER)
        .wait()
        .unwrap_err();
    assert_ne!(ended.reason(), catalogue::DEADLINE, "{ended}");
    hand.engine.shutdown(Duration::from_millis(100));
    other.engine.shutdown(Duration::from_millis(100));
    let mut graph = Draft::new();
    graph.constant("k", &[1.0]);
    let session = session(&servers[0], graph.finish());
    assert_eq!(values(&session.run(&[], &["k"], &[]).unwrap()[0]), [1.0]);
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}
