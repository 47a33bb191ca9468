//! Waiting: how long receives wait for a peer that is not there.

use rendez::ground::{Code, DType, Key, Nanos, Shape, StepId, TensorMeta, catalogue};

use crate::dials::Dials;
use crate::world::World;

fn tick_until(world: &mut World, until: u64) {
    while world.now() < until {
        world.tick().unwrap();
    }
}

/// The connect deadline ends what has no end of its own. A receive that says how long it waits, waits that long, and
/// has its value if the peer comes by then.
#[test]
fn a_deadline_of_its_own_outlasts_the_connect_deadline() {
    let mut dials = Dials::calm(1);
    dials.settings.connect_timeout_ns = 100_000;
    dials.apart_ns = 1_000_000;
    let mut world = World::new(dials);
    let step = StepId(1);
    let [first, second, third] =
        ["first", "second", "third"].map(|edge| Key::between("t1", "t0", edge).unwrap());
    let receiver = &mut world.nodes[0].solos[0];
    let patient = receiver.recv(step, &first, Nanos(3_000_000));
    let brief = receiver.recv(step, &second, Nanos(500_000));
    let endless = receiver.recv(step, &third, Nanos::NEVER);
    tick_until(&mut world, 300_000);
    let status = endless.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::CONNECT_DEADLINE, "{status}");
    assert!(brief.take().is_none(), "it has a deadline of its own");
    tick_until(&mut world, 600_000);
    let status = brief.take().unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    tick_until(&mut world, 1_300_000);
    assert!(patient.take().is_none(), "nothing was sent yet");
    let meta = TensorMeta::new(DType::U8, Shape::new(&[3]).unwrap()).unwrap();
    let sent = world.nodes[1].solos[0].enter(|context| {
        let key = context.prepare(&first)?;
        let mut builder = context.builder(meta)?;
        builder.bytes_mut().copy_from_slice(b"abc");
        context.send(step, key, builder.finish())
    });
    sent.unwrap();
    tick_until(&mut world, 2_000_000);
    let received = patient.take().unwrap().unwrap();
    assert_eq!(received.tensor.host().unwrap(), b"abc");
}
