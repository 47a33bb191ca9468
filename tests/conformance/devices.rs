//! What every way of handing a device's tensor over must do: one suite, instantiated for each, over a played driver.
//!
//! Knows the public faces of the engine and of remote calls. The peer does what it is told by values
//! (`devices/peer.rs`), in this process or in another; where a value lies when it has come is all that differs.

mod peer;

use std::sync::{Mutex, MutexGuard, PoisonError};

use rendez::engine::{Engine, Require};
use rendez::ground::rng::Rng;
use rendez::ground::{Code, Status, StepId, catalogue};
use rendez::memory::Tensor;
use rendez_played_cuda::Played;
use rendez_rpc::Agent;

use peer::{Lay, Order, PATIENCE, Peer, bytes, group, host, key, seen, tell, until};

const LENGTHS: [usize; 6] = [1, 17, 4096, 70_000, 196_609, 2 << 20];

/// A way between two sides.
struct Way {
    /// Where a value lies at its receiver.
    lay: Lay,
    require: Require,
    place: Place,
}

/// Where the peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    SameEngine,
    Loopback,
    SharedMemory,
    /// In another process, which sees those devices, and whose driver lacks that.
    Process(&'static str, &'static str),
}

const fn way(lay: Lay, place: Place) -> Way {
    let require = Require::None;
    Way {
        lay,
        require,
        place,
    }
}

/// One engine, which is its own peer.
const SAME_ENGINE: Way = way(Lay::Here, Place::SameEngine);
const LOOPBACK: Way = way(Lay::Leased, Place::Loopback);
const SHARED_MEMORY: Way = way(Lay::Leased, Place::SharedMemory);
/// Another process, whose driver numbers the devices the other way round.
const LEASE: Way = way(Lay::Leased, Place::Process("02,01", ""));
/// A peer that does not see the device, but another of ours: a copy there is lent.
const OTHER_DEVICE: Way = way(Lay::Leased, Place::Process("02", ""));
/// A peer that sees none of ours: by way of the host.
const UNSEEN: Way = way(Lay::Host, Place::Process("03", ""));
const TCP: Way = Way {
    require: Require::Tcp,
    ..way(Lay::Host, Place::Process("01,02", ""))
};

/// Two sides, and the played library of this process, which they have alone.
struct World {
    peer: Peer,
    ours: Engine,
    names: [&'static str; 2],
    way: &'static Way,
    played: Played,
    violations: [u64; 2],
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new(way: &'static Way) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let played = Played::load();
        played.heal();
        let ours = Engine::start(peer::config("a", way.require)).expect("an engine");
        peer::warm(&ours);
        let mut names = ["a", "b"];
        let near = || {
            let theirs = Engine::start(peer::config("b", way.require)).expect("an engine");
            peer::warm(&theirs);
            theirs
        };
        let peer = match way.place {
            Place::SameEngine => {
                names = ["a", "a"];
                Peer::here(ours.clone(), "a", "a")
            }
            Place::Loopback => {
                let theirs = near();
                ours.connect_local(&theirs).expect("two engines");
                peer::greet(&theirs, ["b", "a"]);
                Peer::here(theirs, "b", "a")
            }
            Place::SharedMemory => {
                let theirs = near();
                let address = ours.address().expect("it listens").clone();
                theirs.add_peer(ours.task().clone(), address);
                peer::greet(&theirs, ["b", "a"]);
                Peer::here(theirs, "b", "a")
            }
            Place::Process(sees, without) => {
                let address = match way.require {
                    Require::Tcp => ours.tcp_address(),
                    _ => ours.address(),
                };
                Peer::elsewhere(&address.expect("it listens").to_string(), sees, without)
            }
        };
        if way.place != Place::SameEngine {
            peer::await_greeting(&ours, names);
        }
        let mut world = Self {
            violations: [played.violations(), 0],
            peer,
            ours,
            names,
            way,
            played,
            _turn: turn,
        };
        world.violations[1] = world.theirs()[3];
        world
    }

    fn tell(&self, order: Order, words: [u64; 3]) -> Result<Vec<u8>, String> {
        tell(&self.ours, self.names, order, words)
    }

    /// Blocks of the peer that are out, what it keeps, what for ever, and what its played driver found wrong.
    fn theirs(&self) -> [u64; 4] {
        let words = self.tell(Order::Count, [0; 3]).expect("it counts");
        let word = |at: usize| u64::from_ne_bytes(words[8 * at..][..8].try_into().expect("eight"));
        [word(0), word(1), word(2), word(3)]
    }

    fn give(&self, step: u64, number: u64, tensor: Tensor) -> Result<(), Status> {
        let key = key(self.names[0], self.names[1], &format!("v{number}"));
        self.ours.step(StepId(step)).send(&key, tensor)
    }

    fn device(&self, len: usize, number: u64) -> Tensor {
        let devices = self.ours.devices().expect("devices");
        devices.to_device(&host(len, number), 0).expect("room")
    }

    fn receive(&self, step: u64, number: u64) -> Result<Tensor, Status> {
        let key = key(self.names[1], self.names[0], &format!("v{number}"));
        let step = self.ours.step(StepId(step));
        let received = step.recv(&key).deadline(PATIENCE).wait();
        received.map(|received| received.tensor)
    }

    /// Receives what the peer gave, and says what it is.
    fn take(&self, step: u64, number: u64) -> Result<Vec<u8>, Status> {
        seen(&self.ours, &self.receive(step, number)?)
    }

    /// What a value of that length and seed is when it has come.
    fn whole(&self, len: usize, number: u64) -> Vec<u8> {
        let mut whole = vec![self.way.lay as u8];
        whole.extend(bytes(len, number));
        whole
    }

    /// All that was lent and kept has come home, on both sides, and no work met memory that was gone. So many blocks
    /// may be kept for ever.
    fn rest(&self) {
        let is_home = |[blocks, kept, for_ever]: [u64; 3]| blocks <= for_ever && kept == 0;
        until("ours comes home", || is_home(peer::counts(&self.ours)));
        until("theirs comes home", || {
            let [blocks, kept, for_ever, _] = self.theirs();
            is_home([blocks, kept, for_ever])
        });
        let violations = [self.played.violations(), self.theirs()[3]];
        assert_eq!(violations, self.violations, "work met memory that is gone");
    }

    fn end(mut self) {
        self.rest();
        self.tell(Order::End, [0; 3]).expect("it ends");
        let _is_process = self.peer.kill();
    }
}

fn bytes_of_every_length_arrive(way: &'static Way) {
    let world = World::new(way);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let number = number as u64;
        world.give(2, number, world.device(len, number)).unwrap();
        let words = [2, number, len as u64];
        let came = world.tell(Order::Take, words).unwrap();
        assert!(came == world.whole(len, number), "{len} bytes there");
        world.tell(Order::Give, words).unwrap();
        let came = world.take(2, number).unwrap();
        assert!(came == world.whole(len, number), "{len} bytes back");
    }
    world.end();
}

fn what_is_sent_before_it_is_there_comes_whole(way: &'static Way) {
    let world = World::new(way);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let number = number as u64;
        let (tensor, stream) = peer::early(&world.ours, &host(len, number)).unwrap();
        assert!(!tensor.readiness().is_ready());
        let goes_on = peer::go_on_soon(stream);
        world.give(2, number, tensor).unwrap();
        let words = [2, number, len as u64];
        let came = world.tell(Order::Take, words).unwrap();
        assert!(came == world.whole(len, number), "{len} bytes there");
        goes_on.join().unwrap();
        world.tell(Order::GiveEarly, words).unwrap();
        let came = world.take(2, number).unwrap();
        assert!(came == world.whole(len, number), "{len} bytes back");
    }
    world.end();
}

fn a_stream_that_stalls_keeps_what_it_may_read(way: &'static Way) {
    let world = World::new(way);
    world.give(2, 1, world.device(50_000, 1)).unwrap();
    let is_device = world.tell(Order::TakeLater, [2, 1, 0]).unwrap() == [1];
    assert_eq!(is_device, way.lay != Lay::Host);
    if is_device {
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(
            peer::counts(&world.ours)[0],
            1,
            "a stream may read it still"
        );
        world.tell(Order::GoOn, [0; 3]).unwrap();
    }
    world.end();
}

fn what_was_handed_over_goes_back_whole(way: &'static Way) {
    let world = World::new(way);
    let mut in_place = 0;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let number = number as u64;
        let tensor = world.device(len, number);
        let place = tensor.bytes();
        world.give(2, number, tensor.clone()).unwrap();
        world.tell(Order::Keep, [2, number, 0]).unwrap();
        world.tell(Order::GiveBack, [2, number, 0]).unwrap();
        let back = world.receive(2, number).unwrap();
        in_place += u32::from(back.is_device() && back.bytes() == place);
        assert!(seen(&world.ours, &back).unwrap()[1..] == bytes(len, number)[..]);
    }
    // What goes back by the link that it came by is the very memory; by another it is a copy.
    let is_lent = way.lay != Lay::Host && way.place != OTHER_DEVICE.place;
    assert_eq!(in_place > 0, is_lent);
    world.end();
}

fn what_is_not_received_comes_home(way: &'static Way) {
    let world = World::new(way);
    for number in 0..12 {
        world.give(3, number, world.device(4096, number)).unwrap();
        world.tell(Order::Give, [3, number, 4096]).unwrap();
    }
    let why = Status::new(Code::Aborted, catalogue::STEP_ABORTED, "on purpose");
    world.ours.step(StepId(3)).abort(why);
    let status = world.receive(3, 0).unwrap_err();
    assert_eq!(status.reason(), catalogue::STEP_ABORTED);
    world.end();
}

/// Values of the host's and of a device's, both ways, received late or never.
fn a_storm_loses_nothing_and_mixes_nothing_up(way: &'static Way) {
    let world = World::new(way);
    for seed in 0..3 {
        // Printed only for a failure: the harness keeps the rest.
        eprintln!("seed {seed}");
        let mut rng = Rng::new(seed);
        let step = 10 + seed;
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for number in 0..60 {
            let len = 1 + rng.below(20_000) as usize;
            match rng.below(5) {
                0 => {
                    world.give(step, number, host(len, number)).unwrap();
                    there.push((number, len, Lay::Host));
                }
                1 | 2 => {
                    world.give(step, number, world.device(len, number)).unwrap();
                    there.push((number, len, way.lay));
                }
                _ => {
                    let words = [step, number, len as u64];
                    world.tell(Order::Give, words).unwrap();
                    back.push((number, len, way.lay));
                }
            }
            while rng.one_in(2) && there.len() + back.len() > 0 {
                let (from, is_there) = match back.is_empty() || !there.is_empty() && rng.one_in(2) {
                    true => (&mut there, true),
                    false => (&mut back, false),
                };
                let (number, len, lay) = from.swap_remove(rng.below(from.len() as u64) as usize);
                let came = match is_there {
                    true => world.tell(Order::Take, [step, number, 0]).unwrap(),
                    false => world.take(step, number).unwrap(),
                };
                assert_eq!(came[0], lay as u8, "{len} bytes");
                assert!(came[1..] == bytes(len, number)[..], "{len} bytes");
            }
        }
        // What is left is not wanted.
        let why = Status::new(Code::Aborted, catalogue::STEP_ABORTED, "on purpose");
        world.ours.step(StepId(step)).abort(why);
        world.rest();
    }
    world.end();
}

/// In turn every call of our driver, then of the peer's: what goes wrong says so by name, and the next goes well.
fn every_call_fails_once(way: &'static Way) {
    let world = World::new(way);
    let hand_over = |number: u64| -> Result<(), String> {
        let told = |status: Status| status.reason().to_owned();
        let devices = world.ours.devices().map_err(told)?;
        let tensor = devices.to_device(&host(90_000, number), 0).map_err(told)?;
        world.give(2, number, tensor).map_err(told)?;
        let came = world.tell(Order::Take, [2, number, 0])?;
        assert!(came[1..] == bytes(90_000, number)[..], "{number}");
        world.tell(Order::Give, [2, number, 30_000])?;
        let came = world.take(2, number).map_err(told)?;
        assert!(came[1..] == bytes(30_000, number)[..], "{number}");
        Ok(())
    };
    hand_over(0).unwrap();
    let mut number = 1;
    for is_ours in [true, false] {
        for nth in 1_u64.. {
            match is_ours {
                true => world.played.fail(None, nth, 999),
                false => drop(world.tell(Order::Fail, [0, nth, 999]).unwrap()),
            }
            let done = hand_over(number);
            let has_failed = match is_ours {
                true => world.played.has_failed(),
                false => world.tell(Order::Heal, [0; 3]).unwrap() == [1],
            };
            world.played.heal();
            if !has_failed {
                done.unwrap();
                assert!(nth > 8, "only {nth} calls");
                break;
            }
            if let Err(reason) = done {
                let is_named = reason.starts_with("DEVICE_") || reason == "TENSOR_DEVICE";
                assert!(is_named, "call {nth}: {reason}");
            }
            hand_over(number + 1).unwrap();
            number += 2;
        }
    }
    world.end();
}

/// The peer dies with what it was lent, and with a stream that would read it.
fn memory_comes_home_from_a_peer_that_dies(way: &'static Way) {
    let mut world = World::new(way);
    for number in 0..3 {
        world.give(2, number, world.device(50_000, number)).unwrap();
        let order = if number == 0 {
            Order::TakeLater
        } else {
            Order::Keep
        };
        world.tell(order, [2, number, 0]).unwrap();
    }
    // One that it has not received, and one of its own that is held here.
    world.give(2, 3, world.device(50_000, 3)).unwrap();
    world.tell(Order::Give, [2, 3, 50_000]).unwrap();
    let held = world.receive(2, 3).unwrap();
    if way.lay == Lay::Leased {
        assert_eq!(peer::counts(&world.ours)[0], 4);
    }
    if !world.peer.kill() {
        return;
    }
    until("the memory comes home", || {
        peer::counts(&world.ours)[0] == 0
    });
    // What was there when its owner died can be read as long as it is held.
    assert!(seen(&world.ours, &held).unwrap()[1..] == bytes(50_000, 3)[..]);
    drop(held);
    until("nothing is kept", || peer::counts(&world.ours) == [0; 3]);
    assert_eq!(world.played.violations(), world.violations[0]);
}

macro_rules! conformance_of_devices {
    ($($name:ident: $way:ident, [$($also:ident)*];)*) => {$(
        mod $name {
            conformance_of_devices! { @ $way
                bytes_of_every_length_arrive
                what_is_sent_before_it_is_there_comes_whole
                a_stream_that_stalls_keeps_what_it_may_read
                what_was_handed_over_goes_back_whole
                what_is_not_received_comes_home
                a_storm_loses_nothing_and_mixes_nothing_up
                every_call_fails_once
                $($also)*
            }
        }
    )*};
    (@ $way:ident $($test:ident)*) => {$(
        #[test]
        fn $test() {
            super::$test(&super::$way);
        }
    )*};
}

conformance_of_devices! {
    same_engine: SAME_ENGINE, [];
    loopback: LOOPBACK, [];
    shared_memory: SHARED_MEMORY, [];
    lease: LEASE, [memory_comes_home_from_a_peer_that_dies];
    other_device: OTHER_DEVICE, [memory_comes_home_from_a_peer_that_dies];
    unseen: UNSEEN, [memory_comes_home_from_a_peer_that_dies];
    tcp: TCP, [memory_comes_home_from_a_peer_that_dies];
}

/// A peer that sees the device, and whose driver maps no memory for reading only.
const UNMAPPED: Way = way(Lay::Host, Place::Process("01,02", "readonly"));

#[test]
fn a_peer_that_cannot_import_hears_so_by_name_and_loses_nothing_else() {
    let world = World::new(&UNMAPPED);
    for number in 0..3 {
        world.give(2, number, world.device(50_000, number)).unwrap();
        let why = world.tell(Order::Take, [2, number, 0]).unwrap_err();
        assert_eq!(why, catalogue::TENSOR_DEVICE);
        world.give(4, number, host(50_000, number)).unwrap();
        let came = world.tell(Order::Take, [4, number, 0]).unwrap();
        assert!(came == world.whole(50_000, number));
    }
    world.end();
}

#[test]
fn a_call_whose_tensor_a_peer_cannot_import_fails_and_its_worker_is_heard_on() {
    let world = World::new(&UNMAPPED);
    let ours = world.ours.clone();
    let on_device: Vec<_> = (0..3).map(|number| world.device(5000, number)).collect();
    let calling = std::thread::spawn(move || {
        let agent = Agent::init(&ours, "a", group()).expect("a worker");
        let call = |tensor: Tensor| {
            let call = agent.rpc_async::<u64>("b", "sum", (tensor,));
            call.expect("there is b")
        };
        let sum = |number| {
            bytes(5000, number)
                .iter()
                .map(|&byte| u64::from(byte))
                .sum()
        };
        for (number, unread) in (0..).zip(on_device) {
            // All of them go by one key.
            let calls = [host(5000, number), unread, host(5000, number + 1)].map(call);
            let [before, unread, after] = calls.map(rendez_rpc::Pending::wait);
            let error = unread.unwrap_err();
            assert!(error.message().contains("cannot be read"), "{error}");
            assert_eq!((before, after), (Ok(sum(number)), Ok(sum(number + 1))));
        }
        agent.shutdown(PATIENCE).expect("both leave");
    });
    world.tell(Order::Work, [2, 0, 0]).expect("both leave");
    calling.join().expect("no panic");
    world.end();
}
