//! Tensors in pages of their own, which receivers map to themselves: what they write there neither the sender nor
//! another receiver sees, also when the sender has gone.
//!
//! Engines of one process, connected by loopback and by sockets; and a sender in a process of its own, which is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use rendez::engine::{Engine, Require};
use rendez::ground::{Code, DType, Key, Status, StepId, catalogue};
use rendez::memory::Tensor;
use rendez::trace::Path;

use crate::support::{PATIENCE, engine, on_the_network, until};
const STEP: StepId = StepId(1);
/// A quarter of a million floats, and one that begins a page more.
const ELEMENTS: usize = (1 << 18) + 1;

fn paged(engine: &Engine) -> Tensor {
    let mut builder = engine.paged_tensor(DType::F32, &[ELEMENTS as u64]).unwrap();
    let elements = builder.as_mut_slice::<f32>().unwrap();
    for (at, element) in elements.iter_mut().enumerate() {
        *element = at as f32;
    }
    builder.finish()
}

fn is_original(elements: &[f32]) -> bool {
    let mut counted = elements.iter().enumerate();
    elements.len() == ELEMENTS && counted.all(|(at, element)| *element == at as f32)
}

fn reads_original(tensor: &Tensor) -> bool {
    is_original(tensor.as_slice::<f32>().unwrap())
}

fn key(to: &str, name: &str) -> Key {
    Key::between("a", to, name).unwrap()
}

fn take(engine: &Engine, key: &Key) -> (Tensor, Path) {
    let received = engine.step(STEP).recv(key).deadline(PATIENCE).wait();
    let received = received.unwrap();
    (received.tensor, received.path)
}

#[test]
fn a_receiver_writes_and_nobody_else_sees_it() {
    let [a, b, c] = ["a", "b", "c"].map(|task| engine(task, |_| {}));
    a.connect_local(&b).unwrap();
    a.connect_local(&c).unwrap();
    let source = paged(&a);
    for to in ["a", "b", "c"] {
        a.step(STEP).send(&key(to, "x"), source.clone()).unwrap();
    }
    let (own, of_own) = take(&a, &key("a", "x"));
    let (leased, of_leased) = take(&b, &key("b", "x"));
    let (other, of_other) = take(&c, &key("c", "x"));
    assert_eq!(
        [of_own, of_leased, of_other],
        [Path::Local, Path::Lease, Path::Lease]
    );
    let mut near = own.map_private().unwrap();
    let mut mine = leased.map_private().unwrap();
    near.as_mut_slice::<f32>().unwrap().fill(-1.0);
    mine.as_mut_slice::<f32>().unwrap()[ELEMENTS - 1] = -2.0;
    // Only the last page was written to: the others are the sender's still.
    assert_eq!(mine.as_slice::<f32>().unwrap()[ELEMENTS - 1], -2.0);
    assert_eq!(
        mine.as_slice::<f32>().unwrap()[ELEMENTS - 2],
        (ELEMENTS - 2) as f32
    );
    for reader in [&source, &own, &leased, &other] {
        assert!(reads_original(reader), "{reader:?}");
    }
    assert!(is_original(
        other.map_private().unwrap().as_slice().unwrap()
    ));
    // What was written goes on as a value of its own, from where it lies.
    let meta = mine.meta();
    let written = Tensor::from_foreign(meta, mine, drop).unwrap();
    b.step(STEP)
        .send(&Key::between("b", "b", "on").unwrap(), written)
        .unwrap();
    drop((source, own, leased, other, near));
    let (on, _) = take(&b, &Key::between("b", "b", "on").unwrap());
    assert_eq!(on.as_slice::<f32>().unwrap()[ELEMENTS - 1], -2.0);
}

#[test]
fn a_private_mapping_holds_the_lease_and_no_longer() {
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    let known = a.stats()[0].arena_in_use;
    let source = paged(&a);
    a.step(STEP).send(&key("b", "x"), source).unwrap();
    let (leased, _) = take(&b, &key("b", "x"));
    let leases = |engine: &Engine| engine.stats()[0].leases;
    let mine = leased.map_private().unwrap();
    drop(leased);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(leases(&b), 1, "the mapping keeps it");
    assert!(is_original(mine.as_slice().unwrap()));
    drop(mine);
    until("the lease ends", || leases(&b) == 0);
    assert_eq!(a.stats()[0].arena_in_use, known);
}

#[test]
fn what_owns_no_pages_is_refused_by_name() {
    let (a, b) = (engine("a", |_| {}), engine("b", |_| {}));
    a.connect_local(&b).unwrap();
    let (far, farther) = (
        on_the_network("a", Require::Tcp),
        on_the_network("b", Require::Tcp),
    );
    farther.add_peer(far.task().clone(), far.tcp_address().unwrap().clone());
    let packed = a.tensor(DType::F32, &[ELEMENTS as u64]).unwrap().finish();
    let mut short = a.paged_tensor(DType::F32, &[8]).unwrap();
    short.as_mut_slice::<f32>().unwrap().fill(3.0);
    let cases = [
        // Read in place, among others.
        (&a, &b, "packed", packed, Path::Lease),
        // So short that it travels in a frame.
        (&a, &b, "short", short.finish(), Path::Inline),
        // Over a socket: the receiver's bytes are its own, among others.
        (&far, &farther, "far", paged(&far), Path::Copy),
    ];
    for (from, to, name, tensor, path) in cases {
        let key = key("b", name);
        from.step(STEP).send(&key, tensor).unwrap();
        let (tensor, came) = take(to, &key);
        assert_eq!(came, path, "{name}");
        let status = Status::from(tensor.map_private().unwrap_err());
        assert_eq!(
            (status.code(), status.reason()),
            (Code::FailedPrecondition, catalogue::TENSOR_PAGES),
            "{name}: {status}"
        );
    }
}

/// Where the receivers listen, for the sender's process.
const ROLE: &str = "PRIVATE_MEMORY_CHILD";

#[test]
fn a_sender_sees_nothing_and_may_die() {
    let (b, c) = (
        on_the_network("b", Require::Shm),
        on_the_network("c", Require::Shm),
    );
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "private_memory::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(
            ROLE,
            format!("{} {}", b.address().unwrap(), c.address().unwrap()),
        )
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (leased, of_leased) = take(&b, &key("b", "x"));
    let (other, of_other) = take(&c, &key("c", "x"));
    assert_eq!([of_leased, of_other], [Path::Lease, Path::Lease]);
    let mut mine = leased.map_private().unwrap();
    drop(leased);
    let half = ELEMENTS / 2;
    mine.as_mut_slice::<f32>().unwrap()[..half].fill(-1.0);
    b.step(STEP)
        .send(
            &Key::between("b", "a", "look").unwrap(),
            Tensor::scalar(1_u8),
        )
        .unwrap();
    assert!(lines.any(|line| line.unwrap().ends_with("sees nothing")));
    assert!(reads_original(&other));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the sender is lost", || {
        b.connected().is_empty() && c.connected().is_empty()
    });
    // The pages that were written to are the mapping's own, and the others cannot be taken away.
    mine.as_mut_slice::<f32>().unwrap()[half] = -2.0;
    let elements = mine.as_slice::<f32>().unwrap();
    assert!(elements[..half].iter().all(|&element| element == -1.0));
    assert_eq!(elements[half], -2.0);
    let mut rest = elements.iter().enumerate().skip(half + 1);
    assert!(rest.all(|(at, &element)| element == at as f32));
    assert!(reads_original(&other));
    let mut others = other.map_private().unwrap();
    others.bytes_mut().fill(0);
    assert!(reads_original(&other));
}

/// Not a test of its own: the sender.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (of_b, of_c) = role.split_once(' ').unwrap();
    let a = on_the_network("a", Require::Shm);
    let source = paged(&a);
    for (to, address) in [("b", of_b), ("c", of_c)] {
        let task = format!("/job:{to}/task:0").parse().unwrap();
        a.add_peer(task, address.parse().unwrap());
        a.step(STEP).send(&key(to, "x"), source.clone()).unwrap();
    }
    take(&a, &Key::between("b", "a", "look").unwrap());
    assert!(reads_original(&source));
    writeln!(std::io::stdout(), "sees nothing").unwrap();
    loop {
        std::thread::sleep(PATIENCE);
    }
}
