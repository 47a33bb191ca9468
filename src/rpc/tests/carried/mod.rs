//! Calls between two workers, whatever carries them: tensors as arguments, as results and as values of references.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rendez::engine::Engine;
use rendez::ground::DType;
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Context, Error, Functions, Options, RRef, Worker};

/// Longer than anything takes that does not hang.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What is in a tensor of so many bytes.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + len) as u8).collect()
}

/// A tensor in an engine's own memory.
pub(crate) fn made(engine: &Engine, len: usize) -> Result<Tensor, Error> {
    let mut builder = engine.tensor(DType::U8, &[len as u64])?;
    builder.bytes_mut().copy_from_slice(&pattern(len));
    Ok(builder.finish())
}

pub(crate) fn bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.host().expect("host memory").to_vec()
}

/// Two workers, and what the second has been given and keeps.
pub(crate) struct Pair {
    pub(crate) agents: Vec<Agent>,
    pub(crate) kept: Arc<Mutex<Vec<Tensor>>>,
}

impl Pair {
    /// The workers `one` and `two` of two engines that can reach each other by TCP, or as they are.
    pub(crate) fn new(engines: [&Engine; 2]) -> Self {
        let kept: Arc<Mutex<Vec<Tensor>>> = Arc::default();
        let keeper = Arc::clone(&kept);
        let functions = Functions::new()
            .add("keep", move |tensor: Tensor| {
                let is_whole = bytes(&tensor) == pattern(tensor.size());
                keeper.lock().expect("no panic").push(tensor);
                is_whole
            })
            .add("same", |tensor: Tensor| tensor)
            .add("make", |len: u64| -> Result<Tensor, Error> {
                let agent = Context::current().expect("a call").agent();
                made(agent.engine(), len as usize)
            });
        let worker = |(name, engine): (&str, &Engine)| {
            let address = engine.tcp_address().or_else(|| engine.address());
            Worker::new(name, engine.task().to_string()).at(address.expect("it listens").clone())
        };
        let names = ["one", "two"];
        let options = Options::of_workers(names.into_iter().zip(engines).map(worker));
        let options = options.functions(functions);
        let agents = std::thread::scope(|scope| {
            let init = |(name, engine)| {
                let options = options.clone();
                scope.spawn(move || Agent::init(engine, name, options).expect("an agent"))
            };
            let threads: Vec<_> = names.into_iter().zip(engines).map(init).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        Self { agents, kept }
    }

    /// Tensors of all sizes, each way, as arguments, results and values of references.
    pub(crate) fn carries_tensors(&self) {
        for len in [1, 100, 1000, 1100, 70_000, 3_000_000] {
            for (from, to) in [(0, "two"), (1, "one")] {
                let agent = &self.agents[from];
                let tensor = made(agent.engine(), len).expect("memory");
                let is_whole: bool = agent
                    .rpc_sync(to, "keep", (tensor.clone(),))
                    .expect("an answer");
                assert!(is_whole, "an argument of {len} bytes");
                let back: Tensor = agent.rpc_sync(to, "same", (tensor,)).expect("an answer");
                assert_eq!(bytes(&back), pattern(len), "back again");
                let result: Tensor = agent
                    .rpc_sync(to, "make", (len as u64,))
                    .expect("an answer");
                assert_eq!(bytes(&result), pattern(len), "a result of {len} bytes");
                let value: RRef<Tensor> = agent
                    .remote(to, "make", (len as u64,))
                    .expect("a reference");
                assert_eq!(
                    bytes(&value.to_here().expect("a value")),
                    pattern(len),
                    "a value"
                );
            }
        }
        self.kept.lock().expect("no panic").clear();
    }

    /// Both leave in good order.
    pub(crate) fn ends(self) {
        let leave = |agent: Agent| std::thread::spawn(move || agent.shutdown(LONG));
        let threads: Vec<_> = self.agents.into_iter().map(leave).collect();
        for thread in threads {
            thread.join().expect("no panic").expect("it leaves");
        }
    }
}
