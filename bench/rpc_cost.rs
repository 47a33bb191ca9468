//! What a remote call costs both its workers: instructions, and calls to the heap. Both turn in one thread, so neither
//! other threads nor the machine's load are in the figures: they are the same on a busy machine.
//!
//! `cargo test --release -p rendez-rpc --test rpc_cost -- --ignored --nocapture`
//!
//! Ignored by default: it wants valgrind and an optimised build. `scripts/ci.sh counts` runs it. For a profile:
//! `RENDEZ_COST=1 valgrind --tool=callgrind --toggle-collect='*counted::counted*'` with
//! `target/release/deps/rpc_cost-… --exact child --ignored` behind it; `RENDEZ_COST=many` has 200 calls under way, and
//! `RENDEZ_COST=lists` has lists for arguments and results.

use rendez::engine::Engine;
use rendez_rpc::{Agent, Functions, Options, Worker};

#[path = "cost/counted.rs"]
mod counted;
#[path = "../tests/allocations/counting.rs"]
mod counting;
#[path = "cost/pair.rs"]
mod pair;

use counted::{ROLE, counted};
use pair::TASKS;

/// Calls that are counted, after as many that are not.
const CALLS: u64 = 2_000;
/// Calls that are under way at once, where they are many.
const IN_FLIGHT: u64 = 200;

/// What was counted when this was written, of a call of 4 bytes whose function runs in the shard, and how far from it
/// the test still passes.
const INSTRUCTIONS: f64 = 17_050.0;
const HEAP_CALLS: f64 = 10.06;
const WITHIN: f64 = 0.10;

/// Numbers in each of the two lists of a call, one of bytes and one of `f32`, that come back.
const LISTED: usize = 64 << 10;
/// Calls with lists that are counted.
const LISTS: u64 = 10;
/// The same of a byte and an `f32` of such lists.
const LISTED_INSTRUCTIONS: f64 = 42.4;

/// Two workers whose shards no thread turns but this one.
struct Pair {
    engines: [Engine; 2],
    agents: [Agent; 2],
}

impl Pair {
    fn start() -> Self {
        let engines = pair::engines();
        let options = || {
            let functions = Functions::new()
                .add_in_shard("shard", |value: u32| value)
                .add_in_shard("lists", |bytes: Vec<u8>, floats: Vec<f32>| (bytes, floats));
            let workers = ["a", "b"].into_iter().zip(TASKS);
            let workers = workers.map(|(name, task)| Worker::new(name, task));
            Options::of_workers(workers).functions(functions)
        };
        let there = std::thread::spawn({
            let (engine, options) = (engines[1].clone(), options());
            move || Agent::init(&engine, "b", options).expect("an agent")
        });
        let here = Agent::init(&engines[0], "a", options()).expect("an agent");
        let there = there.join().expect("no panic");
        let pair = Self {
            engines,
            agents: [here, there],
        };
        // What was begun while they met is done.
        for _ in 0..1000 {
            pair.turn();
        }
        pair
    }

    fn turn(&self) {
        pair::turn(&self.engines);
    }

    /// A call there and its answer back.
    fn call(&self, value: u32) -> u32 {
        let call = self.agents[0].rpc_async::<u32>("b", "shard", (value,));
        let call = call.expect("it sets out");
        while !call.is_done() {
            self.turn();
        }
        call.wait().expect("an answer")
    }

    /// As many calls at once, each there and its answer back.
    fn calls(&self, count: u32) {
        let call = |value| self.agents[0].rpc_async::<u32>("b", "shard", (value,));
        let calls: Vec<_> = (0..count)
            .map(|value| call(value).expect("it sets out"))
            .collect();
        for (value, call) in (0..count).zip(calls) {
            while !call.is_done() {
                self.turn();
            }
            assert_eq!(call.wait().expect("an answer"), value);
        }
    }

    /// Lists there and back.
    fn lists(&self, lists: &(Vec<u8>, Vec<f32>)) -> (Vec<u8>, Vec<f32>) {
        let call = self.agents[0].rpc_async("b", "lists", lists.clone());
        let call = call.expect("it sets out");
        while !call.is_done() {
            self.turn();
        }
        call.wait().expect("an answer")
    }

    fn end(self) {
        pair::end(self.engines, self.agents);
    }
}

/// Not a test of its own: what runs under valgrind.
#[test]
#[ignore = "measures"]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let pair = Pair::start();
    for count in 0..CALLS as u32 {
        assert_eq!(pair.call(count), count);
    }
    match std::env::var(ROLE).as_deref() {
        Ok("many") => {
            for _ in 0..CALLS / IN_FLIGHT {
                counted(|| pair.calls(IN_FLIGHT as u32));
            }
        }
        Ok("lists") => {
            let lists = (vec![7; LISTED], vec![0.5; LISTED]);
            for _ in 0..LISTS {
                assert_eq!(counted(|| pair.lists(&lists)), lists);
            }
        }
        _ => {
            for count in 0..CALLS as u32 {
                counted(|| pair.call(count));
            }
        }
    }
    pair.end();
}

#[test]
#[ignore = "wants an optimised build"]
fn a_call_asks_the_heap_as_seldom_as_it_did() {
    let pair = Pair::start();
    let run = || (0..CALLS as u32).for_each(|count| assert_eq!(pair.call(count), count));
    run();
    let each = counting::calls(run) as f64 / CALLS as f64;
    eprintln!("{each:.2} calls to the heap for each remote call, of both workers together");
    pair.end();
    assert!(
        (each / HEAP_CALLS - 1.0).abs() <= WITHIN,
        "{each:.2} calls to the heap, and were {HEAP_CALLS}: if that is well, write it down here and in PROMISES.md"
    );
}

#[test]
#[ignore = "wants valgrind and an optimised build"]
fn a_call_takes_as_few_instructions_as_it_did() {
    let each = counted::instructions("1") / CALLS as f64;
    eprintln!("{each:.0} instructions for each remote call, of both workers together");
    assert!(
        (each / INSTRUCTIONS - 1.0).abs() <= WITHIN,
        "{each:.0} instructions, and were {INSTRUCTIONS}: if that is well, write it down here and in PROMISES.md"
    );
}

#[test]
#[ignore = "wants valgrind and an optimised build"]
fn a_list_takes_as_few_instructions_as_it_did() {
    let each = counted::instructions("lists") / (LISTS * LISTED as u64) as f64;
    eprintln!("{each:.1} instructions for a byte and an f32 of lists, there and back");
    assert!(
        (each / LISTED_INSTRUCTIONS - 1.0).abs() <= WITHIN,
        "{each:.1} instructions, and were {LISTED_INSTRUCTIONS}: if that is well, write it down here and in PROMISES.md"
    );
}
