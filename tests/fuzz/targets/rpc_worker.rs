//! A worker that hears whatever others say: messages one after another, each after a byte of its length and one that
//! says whose it is and how much time has passed.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rendez::ground::Nanos;
use rendez_rpc::codec::decode;
use rendez_rpc::message::{Body, Fault, FaultKind, Hello, Message, Outcome, Reference, Target};
use rendez_rpc::node::{Group, Limits, NewCall, Node, Output};
use rendez_rpc::payload::Payload;
use rendez_rpc::{GlobalId, WorkerId};

const ME: WorkerId = WorkerId(1);
const LIFE: u32 = 7;

fn hello() -> Hello {
    Hello {
        roster: 0,
        name: "me".into(),
        task: "/job:a/task:1".into(),
        address: String::new(),
        wants_answer: false,
    }
}

/// One that has met two others, has a call under way to each, and one of its values.
fn worker() -> Node<Payload, u64> {
    let group = Group {
        hello: hello(),
        is_dynamic: true,
    };
    let limits = Limits {
        window: 4,
        waiting: 4,
        serving: 4,
        ..Limits::default()
    };
    let mut node = Node::new(ME, LIFE, group, limits);
    node.join(Nanos(1));
    for other in [0, 2] {
        let hello = Body::Hello(hello());
        let message = Message {
            from_life: 1,
            to_life: LIFE,
            body: hello,
        };
        node.add_peer(Nanos(1), WorkerId(other));
        node.handle_message(Nanos(1), WorkerId(other), message);
        let id = |local| GlobalId { on: ME, local };
        let targets = [
            Target::Function("f".into()),
            Target::Remote {
                function: "g".into(),
                rref: id(1 + 2 * u64::from(other)),
                fork: id(2 + 2 * u64::from(other)),
            },
        ];
        for (token, target) in targets.into_iter().enumerate() {
            let call = NewCall {
                token: token as u64,
                target,
                deadline: Nanos(1_000_000_000),
                references: Vec::new(),
                payload: Payload::default(),
            };
            node.call(Nanos(1), WorkerId(other), call);
        }
    }
    node.create_owned(GlobalId { on: ME, local: 99 }, true);
    node
}

fn pump(node: &mut Node<Payload, u64>, now: Nanos, held: &mut Vec<Vec<Reference>>) {
    for _ in 0..10_000 {
        let Some(output) = node.poll() else {
            return;
        };
        match output {
            Output::Send { to, message } if to == ME => node.handle_message(now, to, message),
            Output::Serve {
                from,
                id,
                references,
                ..
            } => {
                held.push(references);
                let outcome = match id.0 % 3 {
                    0 => Outcome::Fault(Fault::new(FaultKind::Error, "no")),
                    _ => Outcome::Value {
                        payload: Payload::default(),
                        references: Vec::new(),
                    },
                };
                node.finish(now, from, id, outcome);
            }
            _ => {}
        }
    }
    panic!("it never comes to rest");
}

fuzz_target!(|bytes: &[u8]| {
    let (mut node, mut now, mut held) = (worker(), Nanos(2), Vec::new());
    pump(&mut node, now, &mut held);
    let mut rest = bytes;
    while let [len, how, behind @ ..] = rest {
        let (one, next) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = next;
        now = now.after(Duration::from_millis(1 << (how >> 4)));
        node.handle_time(now);
        if let Ok(mut message) = decode::<Payload>(one) {
            // In lives that are known most often: others are dropped.
            if how & 4 == 0 {
                (message.from_life, message.to_life) = (1, LIFE);
            }
            node.handle_message(now, WorkerId(u16::from(how & 3)), message);
        }
        pump(&mut node, now, &mut held);
    }
    // Whatever was said, what the program holds can be dropped, and it can leave.
    for reference in held.iter().flatten() {
        match reference.owner == ME {
            true => node.drop_owned(now, reference.rref),
            false => node.drop_user(now, reference.fork),
        }
    }
    node.drop_owned(now, GlobalId { on: ME, local: 99 });
    node.leave(now, now.after(Duration::from_secs(1)));
    pump(&mut node, now, &mut held);
    node.handle_time(now.after(Duration::from_secs(3600)));
    pump(&mut node, now, &mut held);
});
