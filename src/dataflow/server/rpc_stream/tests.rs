//! Lines between two engines of one process: what is asked is answered once, and an answer that was not asked for is
//! harmless.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::*;
use crate::server::testing::{config, two_engines};
use crate::server::wait::Waiter;
use rendez::engine::{Config, Require};
use rendez::ground::limits::{LINE_MESSAGE_BYTES_MAX, LINE_TENSORS_MAX};
use rendez::ground::{Code, Shape};
use rendez_proto::services::Nothing;

const LINE: StepId = StepId(99);
const PATIENCE: Duration = Duration::from_secs(20);

/// Gives back what it is asked; other methods drop the question, keep it, fail, or answer with
/// more than may be said.
#[derive(Debug, Default)]
struct Echo {
    told: Mutex<Vec<Vec<u8>>>,
    announced: Mutex<Vec<(u64, u32)>>,
    withdrawn: Mutex<Vec<u64>>,
    held: Mutex<Vec<Responder>>,
    lost: Mutex<BTreeMap<StepId, Status>>,
}

const ECHO: u32 = 1;
const DROP: u32 = 2;
const FAIL: u32 = 3;
const LONG: u32 = 4;
const HOLD: u32 = 5;
const LARGE: u32 = 6;

/// What the engines of a tight world keep for receivers, together and in a step.
const ROOM: u64 = 64 << 10;

/// What is asked is given back.
struct Echoed;

impl Method for Echoed {
    const NUMBER: u32 = ECHO;
    const NAME: &'static str = "Echoed";
    type Request = Nothing;
    type Answer = Nothing;
}

impl Service for Echo {
    fn announced(&self, number: u64, method: u32) {
        self.announced.lock().unwrap().push((number, method));
    }

    fn asked(self: Arc<Self>, question: Question) {
        let Question {
            number,
            method,
            rpc_message,
            answer,
        } = question;
        match method {
            ECHO if number == TOLD => self.told.lock().unwrap().push(rpc_message.body),
            ECHO => answer.give_raw(Ok(rpc_message)),
            HOLD => self.held.lock().unwrap().push(answer),
            FAIL => answer.give_raw(Err(Status::of(catalogue::FEED_UNFIT, "unfit").derived())),
            LONG => answer.give_raw(Ok(RpcMessage {
                body: vec![0; LINE_MESSAGE_BYTES_MAX],
                tensors: vec![],
            })),
            LARGE => answer.give_raw(Ok(rpc_message_of(&[8 << 10, 2 * ROOM as usize]))),
            _ => drop(answer),
        }
    }

    fn withdrawn(&self, number: u64) {
        self.withdrawn.lock().unwrap().push(number);
    }

    fn lost(self: Arc<Self>, line: StepId, status: Status) {
        self.lost.lock().unwrap().insert(line, status);
    }
}

impl Echo {
    fn has_lost(&self, line: StepId) -> bool {
        self.lost.lock().unwrap().contains_key(&line)
    }
}

impl RpcStream {
    /// Asks, and keeps the tensors back until what is given with the number is called.
    pub(crate) fn ask_ahead<M: Method>(
        &self,
        request: &M::Request,
        tensors: Vec<Tensor>,
        done: impl FnOnce(Answer<M>) + Send + 'static,
    ) -> (u64, impl FnOnce()) {
        let mut waiting = self.waiting.locked();
        waiting.next += 1;
        let number = waiting.next;
        let done = |answer: Result<RpcMessage, Status>| {
            done(answer.and_then(|answer| {
                let message = read_answer(&M::NAME, &answer.body)?;
                Ok((message, answer.tensors))
            }));
        };
        waiting.done.insert(number, Box::new(done));
        drop(waiting);
        let frame = u64::MAX;
        let message = LineMessage {
            number,
            method: M::NUMBER,
            tensors: tensors.len() as u32,
            body: request.encode_to_vec(),
            frame,
            ..LineMessage::default()
        };
        self.out.post(message.encode_to_vec(), false).unwrap();
        (number, move || {
            assert!(self.out.post_tensors(frame, tensors).unwrap())
        })
    }
}

struct World {
    engines: [Engine; 2],
    echo: Arc<Echo>,
    served: Arc<ServerEnd>,
    line: Arc<RpcStream>,
}

impl World {
    fn new() -> Self {
        Self::of(two_engines())
    }

    /// One whose engines have little room, and read each other's memory in place.
    fn tight() -> Self {
        let engines = ["/job:a/task:0", "/job:b/task:0"].map(|task| {
            let mut config = config(task);
            (config.parked_bytes, config.parked_bytes_per_step) = (ROOM, ROOM);
            Engine::start(config).unwrap()
        });
        engines[0].connect_local(&engines[1]).unwrap();
        Self::of(engines)
    }

    /// The same by TCP.
    fn tight_by_tcp() -> Self {
        Self::by_tcp(|config| {
            (config.parked_bytes, config.parked_bytes_per_step) = (ROOM, ROOM);
        })
    }

    fn by_tcp(set: impl Fn(&mut Config)) -> Self {
        let engines = ["/job:a/task:0", "/job:b/task:0"].map(|task| {
            let mut config = config(task);
            set(&mut config);
            (config.control, config.require) = (true, Require::Tcp);
            config.listen = Some("127.0.0.1:0".parse().unwrap());
            Engine::start(config).unwrap()
        });
        let [a, b] = &engines;
        for (engine, other) in [(a, b), (b, a)] {
            let address = other.tcp_address().unwrap().clone();
            engine.add_peer(other.task().clone(), address);
            engine.connect(other.task());
        }
        Self::of(engines)
    }

    fn of(engines: [Engine; 2]) -> Self {
        let [caller, server] = &engines;
        let echo: Arc<Echo> = Arc::default();
        let service: Weak<Echo> = Arc::downgrade(&echo);
        let line =
            RpcStream::open(caller, LINE, server.task(), || Ok(server.incarnation())).unwrap();
        let served =
            ServerEnd::open(server, LINE, (caller.task(), caller.incarnation()), service).unwrap();
        Self {
            engines,
            echo,
            served,
            line,
        }
    }

    fn ask(&self, method: u32, rpc_message: RpcMessage) -> Result<RpcMessage, Status> {
        let (tell, waiter) = Waiter::pair();
        self.line.ask_raw(method, rpc_message, tell);
        waiter
            .wait(Instant::now().checked_add(PATIENCE))
            .expect("an answer")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.engines
            .iter()
            .for_each(|engine| engine.shutdown(Duration::ZERO));
    }
}

fn rpc_message_of(sizes: &[usize]) -> RpcMessage {
    let tensors = sizes.iter().map(|&size| of_bytes(vec![7; size]).unwrap());
    rpc_message(b"", &tensors.collect::<Vec<_>>())
}

fn rpc_message(body: &[u8], tensors: &[Tensor]) -> RpcMessage {
    RpcMessage {
        body: body.to_vec(),
        tensors: tensors.to_vec(),
    }
}

#[test]
fn what_waits_for_tensors_is_announced_before_what_overtakes_it() {
    let world = World::new();
    let (tell, waiter) = Waiter::pair();
    let tensor = Tensor::scalar(7u8);
    let line = &world.line;
    let (number, send) = line.ask_ahead::<Echoed>(&Nothing {}, vec![tensor], tell);
    world.ask(ECHO, rpc_message(b"after it", &[])).unwrap();
    assert_eq!(*world.echo.announced.lock().unwrap(), [(number, ECHO)]);
    send();
    let answer = waiter.wait(Instant::now().checked_add(PATIENCE));
    let (_, tensors) = answer.expect("an answer").unwrap();
    assert_eq!(tensors[0].host().unwrap(), [7]);
    // What has no tensors, and answers, are not announced.
    assert_eq!(world.echo.announced.lock().unwrap().len(), 1);
}

#[test]
fn questions_are_answered_with_their_tensors() {
    let world = World::new();
    let large = of_bytes((0..100_000_u32).map(|at| at as u8).collect()).unwrap();
    for round in 0..50_u8 {
        let count = usize::from(round % 5);
        let mut tensors = vec![Tensor::scalar(round); count];
        tensors.extend((round % 7 == 0).then(|| large.clone()));
        let answer = world.ask(ECHO, rpc_message(&[round; 3], &tensors)).unwrap();
        assert_eq!(answer.body, [round; 3]);
        assert_eq!(answer.tensors.len(), tensors.len());
        for (got, sent) in answer.tensors.iter().zip(&tensors) {
            assert_eq!(got.bytes(), sent.bytes());
        }
    }
    world.line.tell_raw(ECHO, b"told".to_vec()).unwrap();
    world.ask(ECHO, RpcMessage::default()).unwrap();
    assert_eq!(*world.echo.told.lock().unwrap(), [b"told"]);
}

#[test]
fn every_question_hears_once_whatever_becomes_of_it() {
    let world = World::new();
    let dropped = world.ask(DROP, RpcMessage::default()).unwrap_err();
    assert_eq!(dropped.reason(), catalogue::SERVICE_FAILED);
    let failed = world.ask(FAIL, RpcMessage::default()).unwrap_err();
    assert_eq!(
        (failed.code(), failed.reason()),
        (Code::InvalidArgument, catalogue::FEED_UNFIT)
    );
    assert!(
        failed.is_derived() && failed.message() == "unfit",
        "{failed}"
    );
    let long = world.ask(LONG, RpcMessage::default()).unwrap_err();
    assert_eq!(long.reason(), catalogue::CALL_TOO_LONG);
    let long = world
        .ask(ECHO, rpc_message(&vec![0; LINE_MESSAGE_BYTES_MAX], &[]))
        .unwrap_err();
    assert_eq!(long.reason(), catalogue::CALL_TOO_LONG);
    let many = vec![Tensor::scalar(1_u8); LINE_TENSORS_MAX + 1];
    assert_eq!(
        world
            .ask(ECHO, rpc_message(&[], &many))
            .unwrap_err()
            .reason(),
        catalogue::CALL_TOO_LONG
    );
    // The line goes on.
    assert_eq!(
        world.ask(ECHO, rpc_message(b"on", &[])).unwrap().body,
        b"on"
    );
}

/// The first tensor is there already, and what is refused is longer than all room. Of a question the server hears it
/// too, and of an answer the caller.
#[test]
fn a_tensor_that_is_refused_ends_its_message_at_both_ends() {
    let world = World::tight();
    for round in 1..=5 {
        for (method, sizes) in [
            (ECHO, &[8 << 10, 2 * ROOM as usize, 1, 9000][..]),
            (LARGE, &[]),
        ] {
            let refused = world.ask(method, rpc_message_of(sizes)).unwrap_err();
            assert_eq!(refused.reason(), catalogue::PARKED_BYTES, "{refused}");
        }
        assert_eq!(world.echo.announced.lock().unwrap().len(), round);
        assert_eq!(world.echo.withdrawn.lock().unwrap().len(), round);
    }
    // Nothing of them takes room.
    for _ in 0..20 {
        let answer = world.ask(ECHO, rpc_message_of(&[8 << 10])).unwrap();
        assert_eq!(answer.tensors[0].size(), 8 << 10);
    }
}

/// A tensor waits for the room of one before it, of bytes or strings, which is kept until all of the message are there;
/// and so does its message, where it is longer than a frame. What is said after it is heard.
#[test]
fn tensors_that_do_not_fit_together_come_all_the_same() {
    come_all_the_same(&World::tight());
}

#[test]
fn tensors_that_do_not_fit_together_come_by_tcp_too() {
    come_all_the_same(&World::tight_by_tcp());
}

fn come_all_the_same(world: &World) {
    for body in [0, 4 << 10, ROOM as usize / 2] {
        let sizes = [ROOM as usize * 2 / 3; 5];
        let mut question = rpc_message_of(&sizes);
        question.body = vec![3; body];
        let strings = Tensor::from_strings(&[vec![5; 8 << 10]], Shape::row(1).unwrap()).unwrap();
        question.tensors.insert(0, strings.clone());
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let (tell, waiter) = Waiter::pair();
                world.line.ask_raw(ECHO, question.clone(), tell);
                waiter
            })
            .collect();
        let after = world.ask(ECHO, rpc_message(b"after", &[])).unwrap();
        assert_eq!(after.body, b"after");
        for waiter in asked {
            let answer = waiter.wait(Instant::now().checked_add(PATIENCE));
            let answer = answer.expect("an answer").unwrap();
            assert_eq!(
                (answer.body, answer.tensors.len()),
                (vec![3; body], 1 + sizes.len())
            );
            assert_eq!(answer.tensors[0].bytes(), strings.bytes());
        }
    }
}

#[test]
fn a_tensor_that_there_is_no_memory_for_ends_its_message_alone() {
    const ARENA: usize = 4 << 20;
    let world = World::by_tcp(|config| {
        // What is asked has room where it comes from.
        if config.task.contains("job:b") {
            config.arena.bytes_max = ARENA as u64;
        }
    });
    for round in 1..=2 {
        let refused = world.ask(ECHO, rpc_message_of(&[9000, 2 * ARENA, 9000]));
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), catalogue::ARENA_UNFIT, "{refused}");
        assert_eq!(world.echo.withdrawn.lock().unwrap().len(), round);
        let on = world.ask(ECHO, rpc_message(b"on", &[])).unwrap();
        assert_eq!(on.body, b"on");
    }
}

/// Others have all places for what waits for room, those for what is owed too, and then all but one.
#[test]
fn a_question_that_may_not_wait_for_room_is_refused_alone() {
    let world = World::tight();
    let [caller, server] = &world.engines;
    let (others, filled) = (caller.step(StepId(7)), of_bytes(vec![1; ROOM as usize]));
    let (key, _) = keys_of(
        (caller.task(), Incarnation::CURRENT),
        server.task(),
        "others",
    )
    .unwrap();
    others.send(&key, filled.unwrap()).unwrap();
    let value = of_bytes(vec![1; 8 << 10]).unwrap();
    let fill = |is_owed| {
        let mut waiting = Vec::new();
        loop {
            let mut send = others.send_async(&key, value.clone());
            if is_owed {
                send = send.owed();
            }
            match sender::begun(&mut send) {
                Poll::Pending => waiting.push(send),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(unsent)) => {
                    let reason = unsent.status().reason();
                    assert_eq!(reason, catalogue::WAITING_SENDS, "{unsent}");
                    return waiting;
                }
            }
        }
    };
    let (mut waiting, owed) = (fill(false), fill(true));
    let question = rpc_message_of(&[8 << 10]);
    let refused = world.ask(ECHO, question.clone()).unwrap_err();
    assert_eq!(refused.reason(), catalogue::WAITING_SENDS, "{refused}");
    drop(owed);
    drop(waiting.pop());
    // The shard may not have seen yet that there is a place.
    let until = Instant::now() + PATIENCE;
    let waiter = loop {
        let (tell, waiter) = Waiter::pair();
        world.line.ask_raw(ECHO, question.clone(), tell);
        let Some(refused) = waiter.wait(Some(Instant::now())) else {
            break waiter;
        };
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), catalogue::WAITING_SENDS, "{refused}");
        assert!(Instant::now() < until, "a place comes free");
    };
    assert!(world.line.lost_with().is_none());
    others.abort(Status::of(catalogue::STEP_CANCELLED, "enough"));
    let answer = waiter.wait(Instant::now().checked_add(PATIENCE));
    assert_eq!(
        answer.expect("an answer").unwrap().tensors[0].size(),
        8 << 10
    );
}

#[test]
fn a_line_that_is_closed_is_lost_at_both_ends() {
    let world = World::new();
    world.ask(ECHO, RpcMessage::default()).unwrap();
    assert!(world.line.lost_with().is_none());
    world.line.close();
    let until = Instant::now() + PATIENCE;
    while world.line.lost_with().is_none() || !world.echo.has_lost(LINE) {
        assert!(Instant::now() < until, "both ends hear of it");
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = world.ask(ECHO, RpcMessage::default()).unwrap_err();
    assert_eq!(late.code(), Code::Aborted, "{late}");
    assert_eq!(world.served.id(), LINE);
}

#[test]
fn a_failure_from_the_wire_has_a_code_and_a_reason_that_are_known() {
    let failure = rendez_proto::services::Failure {
        code: 4711,
        reason: "MADE_UP".into(),
        message: "x".repeat(1 << 20),
        derived: false,
    };
    let status = status_of(&failure);
    assert_eq!(
        (status.code(), status.reason()),
        (Code::Unknown, catalogue::PEER_STATUS)
    );
    assert!(status.message().len() <= rendez::ground::limits::STATUS_MESSAGE_BYTES_MAX);
    let known = Status::of(catalogue::STEP_CANCELLED, "enough").derived();
    assert_eq!(status_of(&of_status(&known)), known);
}

/// The server died before anything was heard of it, and its next life knows nothing of the line.
#[test]
fn a_line_to_a_life_that_is_over_is_lost() {
    let world = World::new();
    let [caller, server] = &world.engines;
    let before = Incarnation(server.incarnation().0 ^ 1);
    let line = RpcStream::open(caller, StepId(100), server.task(), || Ok(before)).unwrap();
    let status = lost(&line);
    assert_eq!(status.reason(), catalogue::PEER_RESTARTED, "{status}");
    assert!(world.line.lost_with().is_none());
}

/// No task serves the line, or none says so: then it is over for any task that may serve it.
#[test]
fn a_line_whose_call_fails_is_closed() {
    let world = World::new();
    let [caller, server] = &world.engines;
    let echo: Weak<Echo> = Arc::downgrade(&world.echo);
    let mut served = None;
    let refused = RpcStream::open(caller, StepId(100), server.task(), || {
        let master = (caller.task(), caller.incarnation());
        served = Some(ServerEnd::open(server, StepId(100), master, echo));
        Err(Status::of(catalogue::CALL_DEADLINE, "too late"))
    });
    assert_eq!(refused.unwrap_err().reason(), catalogue::CALL_DEADLINE);
    let until = Instant::now() + PATIENCE;
    while !world.echo.has_lost(StepId(100)) {
        assert!(Instant::now() < until, "who serves it hears of it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!world.echo.has_lost(LINE));
}

/// What a peer may put on a line by hand: bytes as a message, at the end that answers.
fn answer_by_hand(world: &World, bytes: Vec<u8>) {
    let [caller, server] = &world.engines;
    let (messages, _) =
        keys_of((server.task(), Incarnation::CURRENT), caller.task(), ANSWER).unwrap();
    let step = server.step(LINE);
    step.send(&messages, of_bytes(bytes).unwrap()).unwrap();
}

/// Waits until the caller's end is lost, and why.
fn lost(line: &RpcStream) -> Status {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = line.lost_with() {
            return status;
        }
        assert!(Instant::now() < until, "the line is lost");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answers_that_nobody_waits_for_are_ignored() {
    let world = World::new();
    let first = world.ask(ECHO, rpc_message(b"first", &[])).unwrap();
    assert_eq!(first.body, b"first");
    // The same answer again, one to a question that never was, one that is told, and one that says it failed.
    for number in [1, u64::MAX, TOLD] {
        for failure in [
            None,
            Some(of_status(&Status::of(catalogue::FEED_UNFIT, "no"))),
        ] {
            let message = LineMessage {
                number,
                body: b"stale".to_vec(),
                failure,
                ..LineMessage::default()
            };
            answer_by_hand(&world, message.encode_to_vec());
        }
    }
    for round in 0..10_u8 {
        assert_eq!(
            world.ask(ECHO, rpc_message(&[round], &[])).unwrap().body,
            [round]
        );
    }
    assert!(world.line.lost_with().is_none());
}

#[test]
fn what_is_no_message_ends_the_line_and_whoever_waits_on_it_hears_so() {
    let long = LineMessage {
        body: vec![0; LINE_MESSAGE_BYTES_MAX],
        ..LineMessage::default()
    };
    let many = LineMessage {
        number: 1,
        tensors: LINE_TENSORS_MAX as u32 + 1,
        ..LineMessage::default()
    };
    let cut = LineMessage {
        number: 1,
        body: vec![1; 100],
        ..LineMessage::default()
    };
    let mut cut = cut.encode_to_vec();
    cut.truncate(50);
    // A length that goes beyond every memory.
    let huge = vec![0x22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for bytes in [
        vec![0xff; 64],
        cut,
        huge,
        many.encode_to_vec(),
        long.encode_to_vec(),
    ] {
        let world = World::new();
        let (tell, waiter) = Waiter::pair();
        // It is promised a tensor that never comes, so it waits.
        let number = world.line.ask_raw(HOLD, RpcMessage::default(), tell);
        let promised = LineMessage {
            number,
            tensors: 1,
            ..LineMessage::default()
        };
        answer_by_hand(&world, promised.encode_to_vec());
        answer_by_hand(&world, bytes);
        let status = lost(&world.line);
        assert_eq!(status.reason(), catalogue::CALL_MALFORMED, "{status}");
        let heard = waiter
            .wait(Instant::now().checked_add(PATIENCE))
            .expect("an answer");
        assert_eq!(heard.unwrap_err().reason(), catalogue::CALL_MALFORMED);
        let until = Instant::now() + PATIENCE;
        // Nothing of it is left: the end that lost it has ended it for the other as well.
        while world
            .engines
            .iter()
            .any(|engine| !engine.pending().is_empty())
        {
            assert!(
                Instant::now() < until,
                "{:?}",
                world.engines.each_ref().map(Engine::pending)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
