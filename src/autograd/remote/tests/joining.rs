//! How a worker comes to its number.

use super::*;
use rendez_rpc::store::Server;

fn started(
    engine: &Engine,
    name: &str,
    open: &Arc<AtomicBool>,
    options: Options,
) -> (Agent, Worker<Tape>) {
    let joining = Joining::new(engine);
    let functions = functions(joining.tape(), open);
    let options = joining.options(options.functions(functions));
    let agent = Agent::init(engine, name, options).expect("an agent");
    let worker = joining.attach(&agent).expect("its worker");
    (agent, worker)
}

fn named(test: &str, at: usize) -> Engine {
    engine(&format!("/job:{test}_{}/task:{at}", std::process::id()))
}

#[test]
fn numbers_may_be_those_of_the_order_in_which_workers_came() {
    let store = Server::start("127.0.0.1:0").expect("a store");
    let open: Arc<AtomicBool> = Arc::default();
    let engines = [0, 1].map(|at| named("order", at));
    let start = |at: usize| {
        let options = Options::through_store(store.address().to_string(), None);
        started(&engines[at], &format!("w{at}"), &open, options)
    };
    let (second, first) = (start(1), start(0));
    let (agents, workers) = [first, second].into_iter().unzip();
    let group = Group {
        agents,
        workers,
        open: Arc::clone(&open),
    };
    let numbers_of: Vec<u16> = group
        .workers
        .iter()
        .map(|worker| worker.id().expect("numbered").0)
        .collect();
    assert_eq!(numbers_of, [1, 0]);
    let x = group.workers[0].engine().leaf(row(&[1.0, 3.0]));
    let scope = group.workers[0].scope().expect("a context");
    let y = relay(&group.agents[0], &["w0"], x.clone());
    backward_from(&scope, &y);
    assert_eq!(gradient_of(&scope, &x), [4.0, 1.0]);
    drop(scope);
    group.leave();
}

/// A worker is called as soon as its agent has begun, and what it says then goes when it is attached.
#[test]
fn what_goes_before_a_worker_is_attached_is_kept() {
    let store = Server::start("127.0.0.1:0").expect("a store");
    let options = || Options::through_store(store.address().to_string(), None);
    let open: Arc<AtomicBool> = Arc::default();
    let engines = [0, 1].map(|at| named("early", at));
    let joining = Joining::new(&engines[1]);
    let all = functions(joining.tape(), &open);
    let called = joining.options(options().functions(all));
    let called = Agent::init(&engines[1], "w1", called).expect("an agent");
    let (agent, worker) = started(&engines[0], "w0", &open, options());
    let x = worker.engine().leaf(row(&[1.0, 3.0]));
    let scope = worker.scope().expect("a context");
    let loss = relay(&agent, &[], x.clone()).total().expect("a sum");
    let attached = std::thread::scope(|threads| {
        let attach = threads.spawn(|| {
            assert!(Group::until(|| joining.link.has_early()));
            joining.attach(&called).expect("its worker")
        });
        scope
            .backward_within(&[loss], Duration::from_secs(60))
            .expect("a pass");
        attach.join().expect("no panic")
    });
    assert_eq!(gradient_of(&scope, &x).len(), 2);
    drop(scope);
    let group = Group {
        agents: vec![agent, called],
        workers: vec![worker, attached],
        open,
    };
    group.leave();
}

#[test]
fn a_worker_without_its_agent_begins_no_context() {
    let joining = Joining::new(&named("unattached", 0));
    let error = joining.worker().scope().expect_err("it has no number");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_JOINING, "{error}");
    assert_eq!(current_context(), None);
}

#[test]
fn autograd_is_attached_to_the_agent_that_began_with_it() {
    let engine = named("attached", 0);
    let task = engine.task().to_string();
    let begin = |joining: &Joining, before: &[&str]| {
        let workers = before
            .iter()
            .map(|name| rendez_rpc::Worker::new(*name, format!("/job:{name}/task:0")));
        let own = rendez_rpc::Worker::new("own", task.clone());
        let mut options = Options::of_workers(workers.chain([own]));
        if !before.is_empty() {
            options.init_timeout = Duration::from_millis(1);
        }
        Agent::init(&engine, "own", joining.options(options))
    };
    let [first, other] = [(); 2].map(|()| Joining::new(&engine));
    begin(&first, &["absent"]).expect_err("one is not there");
    let agent = begin(&other, &[]).expect("it is alone");
    let error = first.attach(&agent).expect_err("it was worker 1's");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_JOINING, "{error}");
    let error = Joining::new(&engine).attach(&agent);
    let error = error.expect_err("its options were not used");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_JOINING, "{error}");
    other.attach(&agent).expect("its own agent");
    agent.shutdown_local();
}
