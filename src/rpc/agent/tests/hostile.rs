//! A worker that says what it likes, by a raw engine on the keys of the group: it costs that call, or that worker, and
//! nothing else.

mod dead;

use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config as Trials, TestRunner};
use rendez::ground::{FrameIter, Key, TaskName};

use super::*;
use crate::agent::lanes::key_of;
use crate::codec::{decode, encode};
use crate::id::{CallId, GlobalId};
use crate::message::{
    Body, Call, Control, Fault, FaultKind, Hello, Message, Outcome, Reference, Standing, Target,
};
use crate::payload::{Parts, Payload, Plain, digest};
use crate::value::Packer;
use crate::{RRef, WorkerId};

/// The number of the worker that keeps no rule.
const OWN: WorkerId = WorkerId(2);
const LIFE: u32 = 5;

/// Values within values, as deep as they say.
#[derive(Debug)]
struct Tree {
    below: Vec<Self>,
}

crate::fields!(Tree { below });

/// A group of two workers that keep the rules, and of one that does not.
struct Scene {
    agents: Vec<Agent>,
    engine: Engine,
    victim: TaskName,
    /// The victim's life.
    life: u32,
    next: Mutex<u64>,
}

impl Scene {
    fn new(test: &str, functions: &Functions) -> Self {
        let engines = engines(3, test);
        let options = Options::of_workers(workers(&engines)).functions(functions.clone());
        let (known, _) = options.workers(&engines[2], "w2").expect("the workers");
        let roster = options.roster(&known);
        let (agents, lives) = std::thread::scope(|scope| {
            let init = |at: usize| {
                let (engine, options) = (&engines[at], options.clone());
                scope.spawn(move || {
                    Agent::init(engine, &format!("w{at}"), options).expect("an agent")
                })
            };
            let threads = [init(0), init(1)];
            let greet = |at: usize| greet(&engines[2], engines[at].task(), roster);
            let lives = [greet(0), greet(1)];
            (
                threads.map(|thread| thread.join().expect("no panic")),
                lives,
            )
        });
        Self {
            agents: agents.into(),
            victim: engines[0].task().clone(),
            engine: engines.into_iter().nth(2).expect("the third"),
            life: lives[0],
            next: Mutex::new(1),
        }
    }

    fn say_bytes(&self, bytes: Vec<u8>) {
        let key = key(&self.engine, &self.victim, 0, true);
        let step = self.engine.step(step_of("rpc"));
        let shape = Shape::row(bytes.len() as u64).expect("a shape");
        let head = Tensor::from_vec(bytes, shape).expect("a tensor");
        while step.send(&key, head.clone()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn say(&self, body: Body<Payload>) {
        let message = Message {
            from_life: LIFE,
            to_life: self.life,
            body,
        };
        self.say_bytes(encode(&message));
    }

    fn fresh(&self) -> CallId {
        let mut next = self.next.lock().expect("no panic");
        *next += 1;
        CallId(*next - 1)
    }

    /// Calls, and gives the number.
    fn call(&self, target: Target, payload: Payload, references: Vec<Reference>) -> CallId {
        let id = self.fresh();
        let call = Call {
            id,
            settled: CallId(0),
            after: None,
            budget: None,
            target,
            references,
            payload,
        };
        self.say(Body::Call(call));
        id
    }

    fn hear(&self) -> Message<Payload> {
        let key = key(&self.engine, &self.victim, 0, false);
        let head = self
            .engine
            .step(step_of("rpc"))
            .recv(&key)
            .deadline(LONG)
            .wait()
            .expect("a head")
            .tensor;
        decode(head.host().expect("bytes")).expect("a message")
    }

    /// The answer to a call.
    fn answer(&self, to: CallId) -> Outcome<Payload> {
        loop {
            if let Body::Reply { id, outcome } = self.hear().body
                && id == to
            {
                return outcome;
            }
        }
    }

    fn fault(&self, to: CallId) -> FaultKind {
        match self.answer(to) {
            Outcome::Fault(fault) => fault.kind,
            Outcome::Value { .. } => panic!("it has a result"),
        }
    }

    fn dropped(&self) -> f64 {
        let samples = self.agents[0].engine().samples();
        let name = crate::metrics::MALFORMED.name;
        let sample = samples.iter().find(|sample| sample.family.name == name);
        match sample.expect("a sample").number {
            rendez::engine::reporters::Number::One(count) => count,
            _ => panic!("no number"),
        }
    }

    fn until(&self, what: &str, is_it: impl Fn(&Self) -> bool) {
        let began = std::time::Instant::now();
        while !is_it(self) {
            assert!(began.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The others work with each other as if nothing had been.
    fn is_well(&self) {
        for (from, to) in [(0, "w1"), (1, "w0")] {
            let sum: u32 = self.agents[from]
                .rpc_sync(to, "add", (2_u32, 3_u32))
                .expect("a sum");
            assert_eq!(sum, 5);
        }
    }
}

fn key(engine: &Engine, victim: &TaskName, kind: usize, is_ours: bool) -> Key {
    match is_ours {
        true => key_of("rpc", engine.task(), victim, kind).expect("a key"),
        false => key_of("rpc", victim, engine.task(), kind).expect("a key"),
    }
}

/// Says hello to a worker that says hello; what its life is.
fn greet(engine: &Engine, victim: &TaskName, roster: u64) -> u32 {
    let step = engine.step(step_of("rpc"));
    let heads = key(engine, victim, 0, false);
    let head = step
        .recv(&heads)
        .deadline(LONG)
        .wait()
        .expect("a hello")
        .tensor;
    let heard: Message<Payload> = decode(head.host().expect("bytes")).expect("a message");
    assert!(matches!(heard.body, Body::Hello(_)), "{heard:?}");
    let hello = Body::Hello(Hello {
        roster,
        name: "w2".into(),
        task: engine.task().to_string(),
        address: String::new(),
        wants_answer: false,
    });
    let message: Message<Payload> = Message {
        from_life: LIFE,
        to_life: heard.from_life,
        body: hello,
    };
    let bytes = encode(&message);
    let shape = Shape::row(bytes.len() as u64).expect("a shape");
    let head = Tensor::from_vec(bytes, shape).expect("a tensor");
    step.send(&key(engine, victim, 0, true), head)
        .expect("room");
    heard.from_life
}

fn functions() -> Functions {
    Functions::new()
        .add_in_shard("add", |a: u32, b: u32| a.wrapping_add(b))
        .add("depth", |tree: Tree| {
            fn depth(tree: &Tree) -> u32 {
                1 + tree.below.iter().map(depth).max().unwrap_or(0)
            }
            depth(&tree)
        })
        .add("texts", |texts: Vec<String>| texts.len() as u32)
        .add("sum", |tensor: Tensor| tensor.size() as u64)
}

fn payload(types: &str, plain: impl Into<Plain>) -> Payload {
    Payload::from(Parts {
        types: digest(types),
        plain: plain.into(),
        ..Parts::default()
    })
}

fn function(name: &str) -> Target {
    Target::Function(name.into())
}

#[test]
fn noise_is_dropped_and_counted() {
    let scene = Scene::new("noise", &functions());
    let mut runner = TestRunner::new(Trials::with_cases(300));
    let message = scene_messages();
    runner
        .run(
            &(any::<Vec<u8>>(), message, any::<usize>(), any::<u8>()),
            |(noise, body, at, bits)| {
                scene.say_bytes(noise);
                // One that is almost a message.
                let mut bytes = encode(&Message {
                    from_life: LIFE,
                    to_life: scene.life,
                    body,
                });
                let at = at % bytes.len();
                bytes[at] ^= bits;
                scene.say_bytes(bytes);
                Ok(())
            },
        )
        .expect("all is sent");
    scene.say_bytes(Vec::new());
    scene.until("it is counted", |scene| scene.dropped() > 0.0);
    scene.is_well();
}

fn scene_messages() -> impl Strategy<Value = Body<Payload>> {
    let id = any::<u64>().prop_map(CallId);
    let global = (any::<u16>(), 0..GlobalId::LOCAL_END).prop_map(|(on, local)| GlobalId {
        on: WorkerId(on),
        local,
    });
    let control =
        (global.clone(), global.clone(), id.clone(), 0..6_u8).prop_map(|(rref, fork, id, kind)| {
            match kind {
                0 => Control::Cancel(id),
                1 => Control::Took(id),
                2 => Control::Delete { rref, fork },
                3 => Control::Fork {
                    rref,
                    fork,
                    early: Some(0),
                },
                4 => Control::Probe,
                _ => Control::Proceed,
            }
        });
    let call = (id.clone(), global.clone(), any::<Vec<u8>>()).prop_map(|(id, rref, plain)| {
        let target = Target::Fetch(rref);
        let payload = payload("", plain);
        Body::Call(Call {
            id,
            settled: CallId(0),
            after: None,
            budget: Some(1),
            target,
            references: Vec::new(),
            payload,
        })
    });
    let reply = (id.clone(), any::<String>()).prop_map(|(id, text)| {
        let outcome = Outcome::Fault(Fault::new(FaultKind::Error, text));
        Body::Reply { id, outcome }
    });
    let control = (id, control).prop_map(|(id, control)| Body::Control {
        id,
        settled: CallId(0),
        control,
    });
    prop_oneof![call, reply, control]
}

/// Tensors may follow it, which would be taken for those of the next.
#[test]
fn what_is_no_call_and_begins_as_one_ends_its_sender() {
    let scene = Scene::new("torn", &functions());
    let call = scene.agents[0].rpc_async::<()>("w2", "nothing", ());
    let target = function("nothing");
    let mut bytes = encode(&Message {
        from_life: LIFE,
        to_life: scene.life,
        body: Body::Call(Call {
            id: scene.fresh(),
            settled: CallId(0),
            after: None,
            budget: None,
            target,
            references: Vec::new(),
            payload: payload("", Vec::new()),
        }),
    });
    bytes.push(0);
    scene.say_bytes(bytes);
    let error = call.expect("a call").wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_MESSAGE, "{error}");
    scene.is_well();
}

#[test]
fn types_and_sizes_that_lie_cost_that_call() {
    let scene = Scene::new("types", &functions());
    let plain = |value: &(u32, u32)| {
        let mut packer = Packer::default();
        packer
            .plain(&value.0)
            .and_then(|()| packer.plain(&value.1))
            .expect("plain");
        packer.plain
    };
    let good = plain(&(2, 3));
    let calls = [
        ("nothing", payload("", Vec::new()), FaultKind::Function),
        (
            "add",
            payload("u64,u64,", good.clone()),
            FaultKind::Arguments,
        ),
        (
            "add",
            payload("u32,u32,", good[..1].to_vec()),
            FaultKind::Arguments,
        ),
        (
            "add",
            payload("u32,u32,", [&good[..], &[0]].concat()),
            FaultKind::Arguments,
        ),
        // A list of 2^63 texts, and one text of 2^63 bytes.
        (
            "texts",
            payload("Vec<String>,", [[0xff; 8].to_vec(), vec![0x7f]].concat()),
            FaultKind::Arguments,
        ),
        (
            "texts",
            payload(
                "Vec<String>,",
                [vec![1], [0xff; 8].to_vec(), vec![0x7f]].concat(),
            ),
            FaultKind::Arguments,
        ),
        // A million trees within each other.
        (
            "depth",
            payload("Tree{below,},", vec![1; 1 << 20]),
            FaultKind::Arguments,
        ),
        // A tensor that does not come with it.
        (
            "sum",
            payload("Tensor,", Plain::new()),
            FaultKind::Arguments,
        ),
        (
            "rendez.spans",
            payload("", vec![7; 5]),
            FaultKind::Arguments,
        ),
        (
            "rendez.spans",
            payload("rendez::Spans,", vec![0xff; 99]),
            FaultKind::Arguments,
        ),
    ];
    for (name, payload, kind) in calls {
        let id = scene.call(function(name), payload, Vec::new());
        assert_eq!(scene.fault(id), kind, "{name}");
    }
    let id = scene.call(function("add"), payload("u32,u32,", good), Vec::new());
    assert!(
        matches!(scene.answer(id), Outcome::Value { .. }),
        "it is served as others are"
    );
    scene.is_well();
}

#[test]
fn identities_that_are_anothers_are_dropped() {
    let scene = Scene::new("identities", &functions());
    let kept: RRef<u32> = scene.agents[1]
        .remote("w0", "add", (40_u32, 2_u32))
        .expect("a reference");
    assert_eq!(kept.to_here().expect("a value"), 42);
    let (rref, foreign) = (
        kept.id(),
        GlobalId {
            on: WorkerId(1),
            local: 1 << 20,
        },
    );
    let own = |local| GlobalId { on: OWN, local };
    let remote = |rref, fork| Target::Remote {
        function: "add".into(),
        rref,
        fork,
    };
    let mut packer = Packer::default();
    packer
        .plain(&1_u32)
        .and_then(|()| packer.plain(&1_u32))
        .expect("plain");
    let args = || payload("u32,u32,", packer.plain.clone());
    // Its value under another's number; a share that another has made; a new value where one is.
    scene.call(remote(rref, own(1)), args(), Vec::new());
    scene.call(remote(own(2), foreign), args(), Vec::new());
    let stolen = Reference {
        rref,
        owner: WorkerId(0),
        fork: foreign,
        parent: own(1),
        standing: Standing::Known,
    };
    scene.call(function("add"), args(), vec![stolen]);
    let first = scene.call(remote(own(3), own(4)), args(), Vec::new());
    assert!(matches!(scene.answer(first), Outcome::Value { .. }));
    scene.call(remote(own(3), own(5)), args(), Vec::new());
    scene.until("all four are dropped", |scene| scene.dropped() == 4.0);
    // It ends shares that it has not, of the value that is there and of those to come, and says that all may leave.
    for local in 0..64 {
        let fork = GlobalId {
            on: WorkerId(1),
            local,
        };
        let (id, control) = (scene.fresh(), Control::Delete { rref, fork });
        scene.say(Body::Control {
            id,
            settled: CallId(0),
            control,
        });
    }
    let id = scene.fresh();
    scene.say(Body::Control {
        id,
        settled: CallId(0),
        control: Control::Proceed,
    });
    scene.until("that is dropped", |scene| scene.dropped() == 5.0);
    assert_eq!(kept.to_here().expect("a value"), 42);
    let more: RRef<u32> = scene.agents[1]
        .remote("w0", "add", (1_u32, 2_u32))
        .expect("a reference");
    assert_eq!(more.to_here().expect("its share was not buried"), 3);
    scene.is_well();
}

#[test]
fn tensors_that_are_announced_and_do_not_come_cost_their_worker() {
    let scene = Scene::new("announced", &functions());
    let bytes = |from_life: u32| {
        let call = Call {
            id: scene.fresh(),
            settled: CallId(0),
            after: None,
            budget: None,
            target: function("sum"),
            references: Vec::new(),
            payload: payload("Tensor,", Plain::new()),
        };
        let mut bytes = encode(&Message {
            from_life,
            to_life: scene.life,
            body: Body::Call(call),
        });
        // The last byte is how many tensors there are: 4096, each small.
        assert_eq!(bytes.pop(), Some(0));
        bytes.extend([0x80, 0x20]);
        bytes.extend([0; 4096]);
        bytes
    };
    scene.say_bytes(bytes(LIFE));
    scene.is_well();
    // A call of the victim's to it depends on it.
    let call = scene.agents[0]
        .rpc_async::<u32>("w2", "add", (1_u32, 1_u32))
        .expect("a call");
    for _ in 0..64 {
        scene.say_bytes(bytes(LIFE));
    }
    let error = call.wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_MESSAGE, "{error}");
    // However often it does so, and under whichever lives.
    for life in 100..104 {
        for _ in 0..65 {
            scene.say_bytes(bytes(life));
        }
    }
    // The heads of both others follow.
    scene.say_bytes(b"noise".to_vec());
    scene.until("all is heard", |scene| scene.dropped() == 1.0);
    let stats = scene.agents[0].engine().stats();
    let waiting = stats.iter().map(|shard| shard.waiting).sum::<u64>();
    assert!(waiting <= 2 * 1024 + 16, "{waiting} receives wait");
    scene.is_well();
}

#[test]
fn an_answer_that_lies_costs_the_call_that_it_answers() {
    let scene = Scene::new("answers", &functions());
    let lies = [
        payload("String", vec![1, b'x']),
        payload("u32", Vec::new()),
        payload("u32", vec![0xff; 20]),
        payload("u32", vec![1, 2]),
    ];
    for lie in lies {
        let call = scene.agents[0]
            .rpc_async::<u32>("w2", "add", (1_u32, 1_u32))
            .expect("a call");
        let id = loop {
            if let Body::Call(call) = scene.hear().body {
                break call.id;
            }
        };
        // First an answer to a call that there is not.
        for id in [CallId(id.0 + 1000), id] {
            let outcome = Outcome::Value {
                payload: lie.clone(),
                references: Vec::new(),
            };
            scene.say(Body::Reply { id, outcome });
        }
        assert_eq!(call.wait().unwrap_err().reason(), catalogue::RPC_ARGUMENTS);
    }
    scene.is_well();
}

#[test]
fn tensors_under_other_lives_and_of_other_types_are_no_harm() {
    let scene = Scene::new("lives", &functions());
    let small = key(&scene.engine, &scene.victim, 1, true);
    let step = scene.engine.step(step_of("rpc"));
    // Tensors that no head has announced, of lives that there are and are not.
    for iter in [u64::from(scene.life), 77] {
        let at = small.clone().at(FrameIter {
            frame: u64::from(LIFE),
            iter,
        });
        step.send(&at, Tensor::scalar(1_u8)).expect("room");
    }
    let mut announced = payload("Tensor,", Plain::new());
    announced.tensors = vec![Tensor::scalar(7_u64)];
    let id = scene.call(function("sum"), announced, Vec::new());
    let Outcome::Value { payload, .. } = scene.answer(id) else {
        panic!("the one that was there was taken for it");
    };
    assert_eq!(
        *payload.plain,
        [1],
        "the size of the tensor that came first"
    );
    scene.is_well();
}
