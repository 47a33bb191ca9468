//! Contexts over calls: used again, refused when they are over, released though a worker is busy, and errors in the
//! middle of a pass.

use super::super::link::ByCalls;
use super::super::riding::Riding;
use super::*;
use crate::autograd::{Body, Message, MessageId, PassId, Session, WorkerId};
use crate::worker::{Hearing, Link as _};
use rendez_rpc::{Packer, Unpacker, Value, ValueError};

#[test]
fn a_context_is_used_for_several_rounds_and_gradients_add_up() {
    let group = Group::start("reuse", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let id = x.leaf_id().expect("a leaf");
    let scope = worker.scope().expect("a context");
    for round in 1..4 {
        let y: Var = agent.rpc_sync("w1", "scale", (x.clone(),)).expect("a call");
        backward_from(&scope, &y);
        let sum = numbers(&scope.gradients().expect("gradients")[&id]);
        assert_eq!(sum, [2.0 * f64::from(round), -f64::from(round)]);
    }
    drop(scope);
    // Another context begins with nothing.
    let scope = worker.scope().expect("a context");
    assert!(scope.gradients().expect("gradients").is_empty());
    drop(scope);
    group.leave();
}

#[test]
fn two_passes_of_one_context_are_under_way_at_once() {
    let group = Group::start("at_once", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let mut losses = vec![];
    for _ in 0..2 {
        let y: Var = agent.rpc_sync("w1", "scale", (x.clone(),)).expect("a call");
        losses.push(y.total().expect("a sum"));
    }
    let begin = |loss: &Var| {
        let roots = std::slice::from_ref(loss);
        worker.begin_backward(scope.id(), roots, PassOptions::default())
    };
    let passes: Vec<_> = losses
        .iter()
        .map(|loss| begin(loss).expect("it begins"))
        .collect();
    for pass in passes {
        pass.wait().expect("a pass");
    }
    assert_eq!(gradient_of(&scope, &x), [4.0, -2.0]);
    drop(scope);
    group.leave();
}

/// Messages that follow each other go as one call, which carries only so many tensors.
#[test]
fn gradients_of_many_calls_are_more_than_go_together() {
    let group = Group::start("many", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let mut losses = vec![];
    for _ in 0..2 {
        let many: Vec<Var> = agent
            .rpc_sync("w1", "scale_often", (x.clone(),))
            .expect("a call");
        losses.extend(many.iter().map(|one| one.total().expect("a sum")));
    }
    scope.backward(&losses).expect("a pass");
    let each = losses.len() as f64;
    assert_eq!(gradient_of(&scope, &x), [2.0 * each, -each]);
    drop(scope);
    group.leave();
}

#[test]
fn a_leaf_that_nothing_flows_to_has_no_gradient() {
    // PyTorch gives zeros where a call brought several tensors and one of them was not used.
    let group = Group::start("none", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let (x, y) = (
        worker.engine().leaf(row(&[1.0, 3.0])),
        worker.engine().leaf(row(&[5.0, 7.0])),
    );
    for options in both_modes() {
        let scope = worker.scope().expect("a context");
        let both: Vec<Var> = agent
            .rpc_sync("w1", "scale_both", (x.clone(), y.clone()))
            .expect("a call");
        let loss = both[0].total().expect("a sum");
        worker
            .backward(scope.id(), &[loss], options)
            .expect("a pass");
        assert_eq!(gradient_of(&scope, &x), [2.0, -1.0]);
        let all = scope.gradients().expect("gradients");
        assert!(
            !all.contains_key(&y.leaf_id().expect("a leaf")),
            "{options:?}"
        );
    }
    group.leave();
}

#[test]
fn a_call_in_a_context_that_is_over_is_refused() {
    let group = Group::start("over", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    worker.release_context(scope.id()).expect("it is there");
    let error = agent
        .rpc_sync::<Var>("w1", "scale", (x.clone(),))
        .expect_err("its gradients would be lost");
    assert!(
        error
            .message()
            .contains("Could not find autograd context with id"),
        "{error}"
    );
    // A call without eager tensors has nothing to lose.
    let weights: Tensor = agent.rpc_sync("w1", "weights", ()).expect("a call");
    assert_eq!(numbers(&weights), [2.0, -1.0]);
    drop(scope);
    let outside: Var = agent.rpc_sync("w1", "scale", (x,)).expect("a call");
    assert!(!outside.requires_gradient());
    group.leave();
}

/// An argument that takes long to write: its receiver is lost meanwhile.
struct Slow(Worker<Tape>);

impl Value for Slow {
    fn name(to: &mut String) {
        Vec::<String>::name(to);
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        self.0.worker_dead(crate::autograd::WorkerId(1));
        Vec::<String>::new().put(to)
    }

    fn take(_: &mut Unpacker) -> Result<Self, ValueError> {
        Err(ValueError::new("it is an argument only"))
    }
}

#[test]
fn a_call_whose_receiver_is_lost_while_it_is_written_is_refused() {
    let group = Group::start("written", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let way = Slow(worker.clone());
    let error = agent
        .rpc_sync::<Var>("w1", "relay", (way, x.clone()))
        .expect_err("it would bring no history");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_WORKER_DEAD, "{error}");
    worker.worker_joined(crate::autograd::WorkerId(1));
    drop(scope);
    group.leave();
}

/// The reason is not that of arguments that cannot travel: a trainer that asks why its call failed learns that its
/// worker died.
#[test]
fn a_call_in_a_context_of_a_worker_that_died_says_so() {
    let group = Group::start("died", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    worker.worker_dead(crate::autograd::WorkerId(1));
    let error = agent
        .rpc_sync::<Var>("w1", "scale", (x.clone(),))
        .expect_err("it is dead");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_WORKER_DEAD, "{error}");
    worker.worker_joined(crate::autograd::WorkerId(1));
    drop(scope);
    let again = worker.scope().expect("a context");
    let scaled: Var = agent.rpc_sync("w1", "scale", (x,)).expect("a call");
    assert!(scaled.requires_gradient());
    drop(again);
    group.leave();
}

/// A worker that takes one call at a time.
fn busy(mut options: Options) -> Options {
    options.serving = 1;
    options
}

/// A call that keeps such a worker busy until the group is open.
fn occupied(agent: &Agent, to: &str) -> Pending<()> {
    let held = agent.rpc_async(to, "wait", ()).expect("it sets out");
    let is_busy = || {
        let weights = agent.rpc_sync::<Tensor>(to, "weights", ());
        weights.is_err_and(|error| error.reason() == catalogue::RPC_BUSY)
    };
    assert!(Group::until(is_busy));
    held
}

/// Its messages are refused by a worker that is busy, and the program does not wait for that.
#[test]
fn a_pass_ends_when_its_own_worker_leaves() {
    let mut group = Group::start_with("leaves", 2, busy);
    let (agent, worker) = (group.agents.remove(0), group.workers[0].clone());
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let y: Var = agent.rpc_sync("w1", "scale", (x,)).expect("a call");
    let loss = y.total().expect("a sum");
    let held = occupied(&agent, "w1");
    let pass = worker.begin_backward(scope.id(), &[loss], PassOptions::default());
    let pass = pass.expect("it begins");
    let waits = std::thread::spawn(move || pass.wait());
    agent.shutdown_local();
    let error = waits.join().expect("no panic").expect_err("w1 is lost");
    // Whichever is told first: that the message cannot be sent any more, or that its receiver is lost.
    let reasons = [catalogue::AUTOGRAD_WORKER_DEAD, catalogue::RPC_SHUTDOWN];
    assert!(reasons.contains(&error.reason()), "{error}");
    assert_eq!(worker.load().passes, 0);
    group.open.store(true, Ordering::Release);
    drop((held, scope));
    assert!(Group::are_empty(&group.workers[1..]));
}

/// No call of the worker is under way that could fail, and no thread waits for the pass: what ends it is that observers
/// hear of their own worker's end.
#[test]
fn a_pass_ends_when_its_own_worker_leaves_though_nothing_of_it_is_under_way() {
    let mut group = Group::start_with("observers", 3, busy);
    let (agent, worker) = (group.agents.remove(0), group.workers[0].clone());
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let y = relay(&agent, &["w2"], x);
    let loss = y.total().expect("a sum");
    // Worker 1 cannot tell worker 2 of the pass, and says so again and again.
    let between = &group.agents[0];
    let held = occupied(between, "w2");
    let pass = worker.begin_backward(scope.id(), &[loss], PassOptions::default());
    let pass = pass.expect("it begins");
    let is_at_rest = || {
        let figures = agent.debug_info();
        group.workers[1].load().passes == 1 && figures["agent.client_active_calls"] == 0
    };
    assert!(Group::until(is_at_rest));
    assert_eq!(
        (worker.load().passes, group.workers[2].load().passes),
        (1, 0)
    );
    agent.shutdown_local();
    assert!(Group::until(|| worker.load().passes == 0));
    let error = pass.wait().expect_err("its own worker has left");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_WORKER_DEAD);
    assert!(error.message().contains("worker 1"), "{error}");
    group.open.store(true, Ordering::Release);
    drop((held, scope));
    assert!(Group::are_empty(&group.workers));
}

/// The one thread of its pool is in a function, so that what is not light of the pass waits for it, and is dropped by
/// the pool when the worker leaves.
#[test]
fn a_pass_ends_when_its_own_worker_leaves_though_its_work_waits_for_a_thread() {
    let mut group = Group::start_with("queued", 2, |mut options| {
        options.threads = 1;
        options
    });
    let (agent, worker) = (group.agents.remove(0), group.workers[0].clone());
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let y: Var = agent.rpc_sync("w1", "scale", (x,)).expect("a call");
    let mut loss = y.total().expect("a sum");
    // Each function adds to the weight of the pass.
    for _ in 0..16 {
        loss = loss.add(&loss).expect("a sum");
    }
    let held = group.agents[0].rpc_async::<()>("w0", "wait", ());
    let held = held.expect("it sets out");
    let figure = |name| agent.debug_info()[name];
    assert!(Group::until(|| figure("agent.num_idle_threads") == 0));
    let pass = worker.begin_backward(scope.id(), &[loss], PassOptions::default());
    let pass = pass.expect("it begins");
    assert!(Group::until(|| figure("agent.num_queued_calls") == 1));
    let (sender, receiver) = std::sync::mpsc::channel();
    agent.shutdown_local();
    std::thread::spawn(move || sender.send(pass.wait_within(Duration::from_secs(30))));
    let ended = receiver.recv_timeout(Duration::from_secs(120));
    let error = ended.expect("it ends").expect_err("w1 is lost");
    let reasons = [catalogue::AUTOGRAD_WORKER_DEAD, catalogue::RPC_SHUTDOWN];
    assert!(reasons.contains(&error.reason()), "{error}");
    drop(scope);
    // The function is still under way.
    assert!(Group::are_empty(&group.workers));
    group.open.store(true, Ordering::Release);
    drop(held);
}

#[test]
fn work_that_no_agent_takes_is_done_by_another_thread() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let work = move || {
        sender
            .send(std::thread::current().id())
            .expect("it is heard")
    };
    ByCalls::default().offload(Box::new(work));
    let done = receiver.recv_timeout(Duration::from_secs(120));
    assert_ne!(done.expect("it is done"), std::thread::current().id());
}

/// As where a gradient finds no room at its receiver.
#[test]
fn what_rides_with_gradients_that_cannot_go_comes_all_the_same() {
    let group = Group::start("rides_along", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let scope = worker.scope().expect("a context");
    let there: Option<u64> = agent.rpc_sync("w1", "context", ()).expect("a call");
    assert_eq!(there, Some(scope.id().to_wire()));
    let message = |number, body| Message {
        from: Session::default(),
        to: None,
        number,
        body,
    };
    // More than one call carries.
    let gradient = Body::Gradient {
        pass: PassId {
            context: scope.id(),
            root: WorkerId(1),
            number: 1,
        },
        options: PassOptions::default(),
        message: MessageId::new(WorkerId(1), 1),
        gradients: vec![Some(row(&[1.0])); 4097],
    };
    let release = Body::Release {
        context: scope.id(),
        oldest: 0,
    };
    let link = ByCalls::default();
    link.set_agent(agent.downgrade());
    link.set_worker(worker.downgrade());
    let messages = vec![message(1, gradient), message(2, release)];
    link.send(WorkerId(1), messages, Hearing::Soon);
    assert!(Group::until(|| group.workers[1].load().contexts == 0));
    assert_eq!(worker.load().contexts, 1);
    drop(scope);
    group.leave();
}

#[test]
fn an_error_in_the_middle_of_a_pass_names_its_worker_and_leaves_nothing() {
    let group = Group::start("middle", 3);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    // Worker 1 keeps what it computed, gives it twice, and the first pass uses its history up.
    let (first, second): (Var, Var) = {
        let kept: RRef<Var> = agent
            .remote("w1", "scale", (x.clone(),))
            .expect("a reference");
        (
            kept.to_here().expect("a value"),
            kept.to_here().expect("the same value"),
        )
    };
    backward_from(&scope, &first);
    let before = scope.gradients().expect("gradients");
    let error = scope
        .backward(&[second.total().expect("a sum")])
        .expect_err("it is used up at worker 1");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_GRAPH_FREED);
    assert!(error.message().starts_with("Error on Node 1: "), "{error}");
    let after = scope.gradients().expect("gradients");
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    assert!(group.workers.iter().all(|worker| worker.load().passes == 0));
    // The context goes on.
    let y: Var = agent.rpc_sync("w2", "scale", (x,)).expect("a call");
    backward_from(&scope, &y);
    drop(scope);
    group.leave();
}

#[test]
fn a_context_is_released_at_a_worker_that_is_busy() {
    let group = Group::start_with("busy", 2, busy);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let context = worker.create_context().expect("a context");
    let entered = worker.enter(context).expect("it is entered");
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let _y: Var = agent.rpc_sync("w1", "scale", (x,)).expect("a call");
    drop(entered);
    assert_eq!(group.workers[1].load().contexts, 1);
    // The one call that it serves is under way, so that it refuses the message.
    let busy = agent.rpc_async::<()>("w1", "wait", ()).expect("a call");
    while agent.debug_info()["agent.client_active_calls"] == 0 {}
    worker.release_context(context).expect("it is there");
    let is_refused = || group.workers[1].load().contexts == 1;
    assert!(is_refused());
    group.open.store(true, std::sync::atomic::Ordering::Release);
    busy.wait().expect("it ends");
    assert!(Group::are_empty(&group.workers), "it was told again");
    group.leave();
}

#[test]
fn a_worker_that_starts_again_gives_no_id_that_it_gave_before() {
    let engine = engine(&format!("/job:lives_{}/task:0", std::process::id()));
    let ids = [(); 2].map(|()| {
        let worker = Joining::new(&engine).worker().clone();
        Riding::new(worker.clone()).begun(rendez_rpc::WorkerId(3));
        let context = worker.create_context().expect("a context");
        worker.release_context(context).expect("it is there");
        context
    });
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.worker().0 == 3));
}

/// Worker 2 is there and does not get on: without a limit the pass would wait as long as it does not.
#[test]
fn a_pass_that_takes_too_long_is_given_up_everywhere() {
    let group = Group::start_with("limit", 3, busy);
    let (agent, worker, between) = (&group.agents[0], &group.workers[0], &group.agents[1]);
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let y = relay(agent, &["w2"], x);
    let loss = y.total().expect("a sum");
    let held = occupied(between, "w2");
    let retained = PassOptions {
        retain: true,
        ..PassOptions::default()
    };
    let limit = Duration::from_millis(50);
    let pass = worker.backward_within(scope.id(), std::slice::from_ref(&loss), retained, limit);
    let error = pass.expect_err("worker 2 is busy");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_TIMEOUT, "{error}");
    assert!(scope.gradients().expect("gradients").is_empty());
    assert!(Group::until(|| group
        .workers
        .iter()
        .all(|worker| worker.load().passes == 0)));
    // The next one has all that it needs.
    group.open.store(true, Ordering::Release);
    held.wait().expect("it ends");
    let limit = Duration::from_secs(60);
    let pass = worker.backward_within(scope.id(), &[loss], retained, limit);
    pass.expect("it goes well");
    let found = scope.gradients().expect("gradients");
    let found: Vec<Vec<f64>> = found.values().map(numbers).collect();
    assert_eq!(found, [[4.0, 1.0]]);
    drop(scope);
    group.leave();
}

/// Worker 0 may have one call under way and one that waits for it.
#[test]
fn a_call_that_its_own_worker_refuses_leaves_nothing() {
    let group = Group::start_with("refused_here", 2, |mut options| {
        (options.window, options.waiting) = (1, 1);
        options
    });
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let waits = || agent.rpc_async::<()>("w1", "wait", ());
    let occupied = [waits(), waits()].map(|call| call.expect("it sets out"));
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let kept = || (worker.load(), worker.engine().kept());
    let before = kept();
    let refused = agent.rpc_sync::<Var>("w1", "scale", (x.clone(),));
    let error = refused.expect_err("two calls are before it");
    assert_eq!(error.reason(), catalogue::RPC_BUSY, "{error}");
    assert_eq!(kept(), before);
    group.open.store(true, Ordering::Release);
    for call in occupied {
        call.wait().expect("it ends");
    }
    let y: Var = agent.rpc_sync("w1", "scale", (x.clone(),)).expect("a call");
    let options = PassOptions {
        mode: Mode::Fast,
        retain: false,
    };
    let pass = worker.backward(scope.id(), &[y.total().expect("a sum")], options);
    pass.expect("it waits for the call that was made alone");
    assert_eq!(gradient_of(&scope, &x), [2.0, -1.0]);
    drop(scope);
    group.leave();
}

/// Cannot travel.
struct Stays;

impl Value for Stays {
    fn name(to: &mut String) {
        to.push_str("Stays");
    }

    fn put(&self, _: &mut Packer) -> Result<(), ValueError> {
        Err(ValueError::new("it stays"))
    }

    fn take(_: &mut Unpacker) -> Result<Self, ValueError> {
        Ok(Self)
    }
}

/// A history may hold much, and this thread may never call again.
#[test]
fn what_was_written_of_arguments_that_cannot_travel_is_let_go_of() {
    let group = Group::start("stays", 2);
    let (told, released) = std::sync::mpsc::channel();
    let release = move |_: Vec<u8>| told.send(()).unwrap_or_default();
    let meta = row(&[0.0; 512]).meta();
    let lent = Tensor::from_foreign(meta, vec![0u8; 4096], release).expect("a tensor");
    let x = group.workers[0].engine().leaf(lent);
    let result: Result<(), Error> = group.agents[0].rpc_sync("w1", "scale", (x, Stays));
    let error = result.expect_err("it stays");
    assert!(error.message().contains("it stays"), "{error}");
    released.try_recv().expect("the thread keeps it");
    group.leave();
}
