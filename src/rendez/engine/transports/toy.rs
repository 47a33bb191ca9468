//! A toy: a transport as a newcomer would add it, here and nowhere else, and what must come of that line in the list.
//!
//! The acceptor listens at a port of loopback for each channel and says where; the dialler connects; each shows the
//! other the number that it told. The connected sockets go to a second port for TCP of each shard, the toy's own.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{NO_PORT, Registered, Taking, Transport, Wired, port_of, transports};
use crate::control::{Ends, Lack, Offers, Path, PathWish, PeerHello, PeerUp};
use crate::engine::links::{Links, gone, ordered_pairs, pairs, side_of};
use crate::engine::metrics::{Page, Pages as _};
use crate::engine::{Config, Engine, Inner};
use crate::fabric::shm::LinkMapping;
use crate::fabric::tcp::{TcpConfig, TcpPort};
use crate::fabric::{AnyPort, Caps};
use crate::ground::{DType, Key, Locked, Status, StepId, catalogue, limits};

/// Its name and number.
const TOY: Path = Path::new(
    9,
    "toy",
    "the toy",
    ["toy_unavailable_here", "toy_unavailable_there"],
);

/// Its line in the list.
pub(super) const REGISTERED: Registered = Registered {
    path: TOY,
    open: |config, _| {
        let habits = HABITS.locked();
        Ok(Arc::new(Toy {
            habit: habits.get(&config.task).copied(),
            shards: config.shards,
            is_wired: AtomicBool::new(false),
        }))
    },
};

/// How the toy of a task behaves; a task that is not named has none.
static HABITS: Mutex<BTreeMap<String, Habit>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    Works,
    CannotOpen,
    CannotConnect,
    CannotProve,
    /// The first time.
    CannotWire,
}

/// The toy of an engine.
#[derive(Debug)]
struct Toy {
    habit: Option<Habit>,
    shards: usize,
    /// Links were asked for before.
    is_wired: AtomicBool,
}

impl Transport for Toy {
    fn path(&self) -> Path {
        TOY
    }

    fn offers(self: Arc<Self>) -> Option<Arc<dyn Offers>> {
        Some(self)
    }

    fn make_port(&self, _: usize) -> Result<Option<AnyPort>, Status> {
        let port = self.habit.map(|_| TcpPort::new(TcpConfig::default()));
        Ok(port.map(|port| AnyPort::Tcp(port.expect("a port"))))
    }

    fn links(
        &self,
        engine: &Arc<Inner>,
        up: PeerUp,
        _: Option<LinkMapping>,
    ) -> Result<Wired, Status> {
        if !self.is_wired.swap(true, Ordering::Relaxed) {
            self.habit
                .map_or(Ok(()), |habit| habit.fails(Habit::CannotWire))?;
        }
        let (side, taking) = (side_of(&up), Taking::of(engine, &up));
        let ends = up.descriptors.ends.ok_or_else(gone)?.into_any();
        let ends = ends.downcast::<Sockets>().map_err(|_| gone())?;
        let caps = Caps {
            body_max: limits::BODY_MAX,
            one_sided: false,
            read_domain: false,
        };
        let mut links: Links = engine.mailboxes.iter().map(|_| Vec::new()).collect();
        let channels = ordered_pairs(self.shards, usize::from(up.hello.shards), side);
        for ((ours, theirs), socket) in channels.zip(ends.connected) {
            let attach = taking.by(move |ports| {
                // The first: the toy stands before TCP in the list. A fallback to TCP uses it too.
                let (at, port) = port_of!(ports, Tcp).ok_or(NO_PORT)?;
                let qp = port.attach_secured(socket.into(), None, caps);
                Ok((at, qp.map_err(|error| error.to_string())?))
            });
            links[ours].push((theirs as u16, attach));
        }
        Ok((Vec::new(), links))
    }
}

impl Offers for Toy {
    fn path(&self) -> Path {
        TOY
    }

    fn lack(&self) -> Option<Lack> {
        self.habit.is_none().then(|| Lack {
            why: "it plays in its own tests".into(),
            is_fault: false,
        })
    }

    fn open(
        &self,
        peer: &PeerHello,
        is_dialler: bool,
        _: Instant,
    ) -> Result<Box<dyn Ends>, Status> {
        let habit = self.habit.unwrap_or(Habit::CannotOpen);
        let count = pairs(self.shards, usize::from(peer.shards)).count();
        habit.fails(Habit::CannotOpen)?;
        let listen = |_| TcpListener::bind("127.0.0.1:0").map_err(|error| broken(&error));
        let listeners: Vec<_> = match is_dialler {
            true => Vec::new(),
            false => (0..count).map(listen).collect::<Result<_, _>>()?,
        };
        Ok(Box::new(Sockets {
            habit,
            count,
            listeners,
            connected: Vec::new(),
        }))
    }
}

impl Habit {
    fn fails(self, at: Self) -> Result<(), Status> {
        match self == at {
            true => Err(Status::of(catalogue::PATH_REFUSED, format!("toy: {at:?}"))),
            false => Ok(()),
        }
    }
}

/// The toy's ends with one peer.
#[derive(Debug)]
struct Sockets {
    habit: Habit,
    count: usize,
    /// The acceptor's.
    listeners: Vec<TcpListener>,
    connected: Vec<TcpStream>,
}

impl Ends for Sockets {
    fn told(&self) -> Vec<Vec<u8>> {
        let at = |channel: usize| {
            let listener = self.listeners.get(channel);
            let address = listener.map(|listener| listener.local_addr().expect("bound"));
            address.map_or_else(Vec::new, |address| address.to_string().into_bytes())
        };
        (0..self.count).map(at).collect()
    }

    fn device(&self) -> &str {
        "the box"
    }

    fn connect(&mut self, peer: &[Vec<u8>], _: Instant) -> Result<(), Status> {
        self.habit.fails(Habit::CannotConnect)?;
        for address in peer.iter().filter(|_| self.listeners.is_empty()) {
            let address = std::str::from_utf8(address).map_err(|error| broken(&error))?;
            let socket = TcpStream::connect(address).map_err(|error| broken(&error))?;
            self.connected.push(socket);
        }
        Ok(())
    }

    fn prove(&mut self, deadline: Instant) -> Result<(), Status> {
        self.habit.fails(Habit::CannotProve)?;
        for listener in std::mem::take(&mut self.listeners) {
            let (socket, _) = listener.accept().map_err(|error| broken(&error))?;
            self.connected.push(socket);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        for (channel, socket) in self.connected.iter_mut().enumerate() {
            let mut word = [0];
            let proved = socket
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .and_then(|()| socket.write_all(&[channel as u8]))
                .and_then(|()| socket.read_exact(&mut word))
                .and_then(|()| socket.set_nonblocking(true));
            proved.map_err(|error| broken(&error))?;
            if word != [channel as u8] {
                return Err(broken(&"another channel's word"));
            }
        }
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn broken(why: &dyn std::fmt::Display) -> Status {
    Status::of(catalogue::PATH_REFUSED, format!("toy: {why}"))
}

// What must come of it.

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Two engines on two machines, by their boots, whose toys have these habits.
fn apart(test: &str, habits: [Habit; 2], require: PathWish) -> [Engine; 2] {
    let mut index = 0;
    let engines = habits.map(|habit| {
        let task = format!("/job:{test}/task:{index}");
        index += 1;
        HABITS.lock().unwrap().insert(task.clone(), habit);
        let mut config = Config::new(task);
        config.shards = 2;
        config.share_cores = true;
        config.verbs.enabled = false;
        config.arena.segment_bytes = 4 << 20;
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        config.boot = Some(config.task.clone());
        config.require = require;
        Engine::start(config).unwrap()
    });
    let address = engines[1].tcp_address().unwrap().clone();
    engines[0].add_peer(engines[1].task().clone(), address);
    engines
}

pub(super) fn hand_over([a, b]: &[Engine; 2], len: usize) {
    let key = Key::between(
        &a.task().to_string(),
        &b.task().to_string(),
        &len.to_string(),
    );
    let mut builder = a.tensor(DType::U8, &[len as u64]).unwrap();
    for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
        *byte = (at * 7) as u8;
    }
    let tensor = builder.finish();
    let want = tensor.host().unwrap().to_vec();
    let key = key.unwrap();
    a.step(StepId(7)).send(&key, tensor).unwrap();
    let got = b.step(StepId(7)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.host().unwrap(), want, "{len}");
}

pub(super) fn stop(engines: [Engine; 2]) {
    for engine in engines {
        engine.shutdown(PATIENCE);
    }
}

/// It is better than TCP and both have it: it is taken unasked, and is named wherever paths are.
#[test]
fn a_newcomer_carries_tensors_and_is_named_everywhere() {
    let engines = apart("toy", [Habit::Works; 2], PathWish::Auto);
    for len in [1, 1000, 70_000, 3_000_000] {
        hand_over(&engines, len);
    }
    for engine in &engines {
        let connected = engine.connected().remove(0);
        assert_eq!((connected.path, connected.fell_back), (TOY, false));
        assert_eq!(connected.why, "the toy from the box to the box");
        let page = Page(Arc::downgrade(&engine.inner)).metrics(true).unwrap();
        assert!(page.contains("path=\"toy\""), "{page}");
    }
    stop(engines);
    let names: Vec<_> = transports().into_iter().map(Path::name).collect();
    assert_eq!(names.first(), Some(&"shm"));
    assert!(names.ends_with(&["toy", "tcp"]), "{names:?}");
}

#[test]
fn a_newcomer_is_a_word_of_the_setting() {
    let mut config = Config::new("a");
    config.apply_toml("require = \"toy\"", "f.toml").unwrap();
    assert_eq!(config.require, PathWish::only(TOY));
    let engines = apart("demanded", [Habit::Works; 2], config.require);
    hand_over(&engines, 10);
    assert_eq!(engines[1].connected()[0].path, TOY);
    stop(engines);
}

/// Whatever of it fails, on whichever side, tensors go by TCP, and both sides say why.
#[test]
fn a_newcomer_that_fails_is_fallen_back_from() {
    use Habit::{CannotConnect, CannotOpen, CannotProve, Works};
    for fails in [CannotOpen, CannotConnect, CannotProve] {
        for habits in [[fails, Works], [Works, fails]] {
            let engines = apart("falls", habits, PathWish::Auto);
            hand_over(&engines, 100);
            for engine in &engines {
                let connected = engine.connected().remove(0);
                assert_eq!(connected.path, Path::Tcp, "{habits:?}");
                assert!(connected.fell_back && connected.why.contains("toy: "));
                let fallback = engine.fallbacks().remove(0);
                assert_eq!((fallback.from, fallback.to), (TOY, Path::Tcp));
                assert_eq!(fallback.reason, "toy_unavailable_there");
            }
            stop(engines);
        }
    }
}

#[test]
fn a_newcomer_that_is_demanded_and_fails_is_an_error() {
    let habits = [Habit::Works, Habit::CannotProve];
    let engines = apart("refused", habits, PathWish::only(TOY));
    let [a, b] = &engines;
    let key = Key::between(&b.task().to_string(), &a.task().to_string(), "x").unwrap();
    let waiting = a
        .step(StepId(7))
        .recv(&key)
        .deadline(Duration::from_secs(2));
    let status = waiting.wait().unwrap_err();
    assert!(
        a.connected().is_empty() && b.connected().is_empty(),
        "{status}"
    );
    stop(engines);
}

/// A peer that is greeted and cannot be wired, on either side, is hung up on; the next connection carries tensors.
#[test]
fn a_newcomer_that_cannot_be_wired_at_first_is_met_again() {
    use Habit::{CannotWire, Works};
    for habits in [[CannotWire, Works], [Works, CannotWire]] {
        let engines = apart("unwired", habits, PathWish::only(TOY));
        engines[0].connect(engines[1].task());
        let began = Instant::now();
        while engines.iter().any(|engine| engine.connected().is_empty()) {
            assert!(began.elapsed() < PATIENCE, "{habits:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        hand_over(&engines, 100);
        stop(engines);
    }
}
