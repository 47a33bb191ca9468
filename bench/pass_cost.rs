//! What a forward and backward pass over two workers costs both: instructions, in one thread, so that the machine's
//! load is not in the figure.
//!
//! `cargo test --release -p rendez-autograd --test pass_cost -- --ignored --nocapture`
//!
//! Ignored by default: it wants valgrind and an optimised build. For a profile: `RENDEZ_COST=1 valgrind
//! --tool=callgrind --toggle-collect='*counted::counted*'` with `target/release/deps/pass_cost-… --exact child
//! --ignored` behind it.

use rendez::engine::Engine;
use rendez::ground::Shape;
use rendez::memory::Tensor;
use rendez_autograd::autograd::Options as PassOptions;
use rendez_autograd::remote::Joining;
use rendez_autograd::tape::{Tape, Var};
use rendez_autograd::worker::Worker as Autograd;
use rendez_rpc::{Agent, Error, Functions, Options, Worker};

#[path = "cost/counted.rs"]
mod counted;
#[path = "cost/pair.rs"]
mod pair;

use counted::{ROLE, counted};
use pair::TASKS;

/// Passes that are counted, after as many that are not.
const PASSES: u64 = 500;

/// What was counted when this was written, and how far from it the test still passes.
const INSTRUCTIONS: f64 = 299_000.0;
const WITHIN: f64 = 0.10;

fn start(engine: &Engine, at: u16) -> (Agent, Autograd<Tape>) {
    let joining = Joining::new(engine);
    let double = |x: Var| -> Result<Var, Error> { x.scale(2.0).map_err(Error::local) };
    let workers = ["a", "b"].into_iter().zip(TASKS);
    let options = Options::of_workers(workers.map(|(name, task)| Worker::new(name, task)))
        .functions(Functions::new().add_in_shard("double", double));
    let name = ["a", "b"][usize::from(at)];
    let agent = Agent::init(engine, name, joining.options(options)).expect("an agent");
    let autograd = joining.attach(&agent).expect("its worker");
    (agent, autograd)
}

/// Two workers whose shards no thread turns but this one.
struct Pair {
    engines: [Engine; 2],
    agents: [Agent; 2],
    autograd: [Autograd<Tape>; 2],
    weights: Tensor,
}

impl Pair {
    fn start() -> Self {
        let engines = pair::engines();
        let there = std::thread::spawn({
            let engine = engines[1].clone();
            move || start(&engine, 1)
        });
        let (here, first) = start(&engines[0], 0);
        let (there, second) = there.join().expect("no panic");
        let weights = Tensor::from_vec(vec![1.0_f32; 64], Shape::from([8, 8])).expect("a tensor");
        let pair = Self {
            engines,
            agents: [here, there],
            autograd: [first, second],
            weights,
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

    fn pass(&self) {
        let autograd = &self.autograd[0];
        let w = autograd.engine().leaf(self.weights.clone());
        let scope = autograd.scope().expect("a context");
        let call = self.agents[0].rpc_async::<Var>("b", "double", (w.clone(),));
        let call = call.expect("it sets out");
        while !call.is_done() {
            self.turn();
        }
        let y = call.wait().expect("an answer");
        let roots = [y.total().expect("a sum")];
        let pass = autograd.begin_backward(scope.id(), &roots, PassOptions::default());
        let pass = pass.expect("it begins");
        while autograd.load().passes > 0 {
            self.turn();
        }
        pass.wait().expect("it goes well");
        assert_eq!(scope.gradients().expect("a context").len(), 1);
        drop(scope);
        // What the context was is let go of there too.
        while self.autograd[1].load().contexts > 0 {
            self.turn();
        }
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
    (0..PASSES).for_each(|_| pair.pass());
    (0..PASSES).for_each(|_| counted(|| pair.pass()));
    pair.end();
}

#[test]
#[ignore = "wants valgrind and an optimised build"]
fn a_pass_takes_as_few_instructions_as_it_did() {
    let each = counted::instructions("1") / PASSES as f64;
    eprintln!("{each:.0} instructions for each pass, of both workers together");
    assert!(
        (each / INSTRUCTIONS - 1.0).abs() <= WITHIN,
        "{each:.0} instructions, and were {INSTRUCTIONS}: if that is well, write it down here and in PROMISES.md"
    );
}
