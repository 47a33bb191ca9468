//! The driver is asked whether devices work, and may take its time: nothing else waits for its answer.

use super::*;

/// Longer than a test is patient, so that one which fails still ends.
const STALL: u64 = 60_000;
/// Longer than the pause between two questions.
const ASKED: Duration = Duration::from_millis(2500);

fn is_lost(tensor: &Tensor) -> bool {
    match tensor.readiness() {
        Readiness::Ready => false,
        Readiness::After(event) => event.is_lost(),
    }
}

/// Drivers let calls wait for streams, and a stream at a gate waits for the keeper.
#[test]
fn gates_open_while_the_driver_lets_its_callers_wait() {
    let alone = alone();
    let held = alone.played.held();
    for stalled in ["cuStreamCreate", "cuMemHostRegister_v2"] {
        let (a, b) = pair(Way::Shm);
        let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
        let (writer, reader) = (ours.stream(0).unwrap(), theirs.stream(0).unwrap());
        assert!(alone.played.hold(writer.handle() as usize, true));
        let buffer = ours.buffer(0, meta(4096)).unwrap();
        let tensor = buffer.into_tensor_after(meta(4096), &writer).unwrap();
        drop(theirs.buffer(0, meta(4096)).unwrap());
        let of = key("a", "b", "late");
        a.step(STEP).send(&of, tensor).unwrap();
        let got = received(&b, &of).tensor;
        theirs.order(&got, &reader).unwrap();
        alone.played.stall(Some(stalled), STALL);
        let calls = alone.played.count(Some(stalled));
        // It fits in no segment that is there: the pool grows, and is locked meanwhile.
        let grower = theirs.clone();
        let growing = std::thread::spawn(move || grower.buffer(0, meta(5 << 20)).map(drop));
        std::thread::sleep(ASKED);
        assert_eq!(alone.played.pending(reader.handle() as usize), 2);
        assert!(alone.played.hold(writer.handle() as usize, false));
        until("the stream goes on", || {
            alone.played.pending(reader.handle() as usize) == 0
        });
        drop(got);
        until("what is kept goes", || theirs.kept() == (0, 0));
        let is_asked = stalled == "cuStreamCreate";
        if is_asked {
            growing.join().unwrap().unwrap();
            b.shutdown(PATIENCE);
            assert_eq!(alone.played.count(Some(stalled)), calls, "no answer came");
            alone.played.stall(None, 0);
        } else {
            alone.played.stall(None, 0);
            growing.join().unwrap().unwrap();
        }
        drop((reader, writer, ours, theirs, a, b));
        until("all is given back", || alone.played.held() == held);
    }
}

#[test]
fn a_device_that_has_failed_is_asked_no_more() {
    let alone = alone();
    let a = alone_engine();
    let ours = a.devices().unwrap();
    let writer = ours.stream(0).unwrap();
    assert!(alone.played.hold(writer.handle() as usize, true));
    let late = |len| {
        let buffer = ours.buffer(0, meta(len)).unwrap();
        buffer.into_tensor_after(meta(len), &writer).unwrap()
    };
    let tensor = late(4096);
    alone.played.break_devices(710);
    until("its owner knows", || is_lost(&tensor));
    alone.played.heal();
    let asked = alone.played.count(Some("cuStreamCreate"));
    // In a segment that is made only now.
    let later = late(5 << 20);
    until("what comes later is lost too", || is_lost(&later));
    std::thread::sleep(ASKED);
    assert_eq!(alone.played.count(Some("cuStreamCreate")), asked);
    assert!(alone.played.hold(writer.handle() as usize, false));
}
