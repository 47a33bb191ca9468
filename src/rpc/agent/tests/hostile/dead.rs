//! Something dead in the place of a tensor: it could not go when its turn came.

use super::*;
use crate::spans::Profile;
use crate::wait_all;

/// A payload of one small tensor, which is announced and not sent.
fn announced() -> Payload {
    let mut announced = payload("Tensor,", Plain::new());
    announced.tensors = vec![Tensor::scalar(7_u64)];
    announced
}

/// Sends the small tensors that were announced: something dead for the first, and the second as it is.
fn send_dead_and_alive(scene: &Scene) {
    let step = scene.engine.step(step_of("rpc"));
    let small = key(&scene.engine, &scene.victim, 1, true).at(FrameIter {
        frame: u64::from(LIFE),
        iter: u64::from(scene.life),
    });
    step.send_dead(&small, Tensor::scalar(0_u8)).expect("room");
    step.send(&small, Tensor::scalar(7_u64)).expect("room");
}

#[test]
fn a_call_whose_tensor_cannot_come_fails_alone() {
    let scene = Scene::new("dead_call", &functions());
    let call = || scene.call(function("sum"), announced(), Vec::new());
    let (first, second) = (call(), call());
    send_dead_and_alive(&scene);
    assert_eq!(scene.fault(first), FaultKind::Arguments);
    let Outcome::Value { payload, .. } = scene.answer(second) else {
        panic!("the one after it fails too");
    };
    assert_eq!(*payload.plain, [8], "the size of its own tensor");
    scene.is_well();
}

/// The number of the call that comes next.
fn next_call(scene: &Scene) -> CallId {
    loop {
        if let Body::Call(heard) = scene.hear().body {
            return heard.id;
        }
    }
}

/// Answers a call by a tensor that is announced.
fn answer(scene: &Scene, id: CallId) {
    let mut payload = announced();
    payload.types = crate::functions::types_of::<Tensor>();
    let outcome = Outcome::Value {
        payload,
        references: Vec::new(),
    };
    scene.say(Body::Reply { id, outcome });
}

#[test]
fn a_result_whose_tensor_cannot_come_fails_alone() {
    let scene = Scene::new("dead_result", &functions());
    let call = || {
        let call = scene.agents[0].rpc_async::<Tensor>("w2", "f", ());
        let call = call.expect("there is w2");
        let id = next_call(&scene);
        answer(&scene, id);
        call
    };
    let (first, second) = (call(), call());
    send_dead_and_alive(&scene);
    let error = first.wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::TENSOR_DEVICE);
    let tensor = second.wait().expect("a tensor");
    assert_eq!(tensor.as_slice::<u64>().expect("a number"), [7]);
    scene.is_well();
}

#[test]
fn a_result_whose_tensor_cannot_come_is_a_failure_to_all_that_look_at_it() {
    let scene = Scene::new("dead_among_others", &functions());
    let calls = |outcome: &str| {
        let figures = &scene.agents[0].shared().figures;
        let count = figures.calls().find(|(name, _)| *name == outcome);
        count.expect("an outcome").1
    };
    let profile = Profile::new(&scene.agents[0]);
    let call = || {
        let call = profile.scope("step", || {
            scene.agents[0].rpc_async_within::<Tensor>("w2", "f", (), Duration::ZERO)
        });
        let id = next_call(&scene);
        (call.expect("there is w2"), id)
    };
    let ((endless, open), (refused, id)) = (call(), call());
    let values = calls("value");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(wait_all([endless, refused])));
    answer(&scene, id);
    send_dead_and_alive(&scene);
    let error = told.recv_timeout(LONG).expect("it ends").unwrap_err();
    assert_eq!(error.reason(), catalogue::TENSOR_DEVICE, "{error}");
    // What is left is cancelled.
    let is_cancel = |body: &Body<Payload>| match body {
        Body::Control { control, .. } => *control == Control::Cancel(open),
        _ => false,
    };
    while !is_cancel(&scene.hear().body) {}
    assert_eq!((calls("value"), calls("arguments")), (values, 1));
    let spans = profile.finish();
    let of_calls: Vec<_> = (spans.iter().filter(|span| span.name.contains("#f("))).collect();
    assert_eq!(of_calls.len(), 2, "{spans}");
    assert!(of_calls.iter().all(|span| span.is_error), "{spans}");
    scene.is_well();
}
