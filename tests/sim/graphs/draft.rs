//! Draft: a graph cut over tasks, and what a step of it gives. Knows devices, seeds and arithmetic; not who runs it.

use rendez::ground::rng::Rng;
use rendez::ground::{Shape, Status};
use rendez::memory::{Bool8, Tensor};
use rendez_dataflow::graph::{Builder, NodeId, Output, floats, ints};
use rendez_dataflow::operations::Operations;
use rendez_proto::tensorflow::{DataType, GraphDef};

/// The longest chain, and the longest loop.
const CHAIN_MAX: u64 = 8;
const LOOP_MAX: u64 = 5;
/// Lengths of what is fed: in one frame, in several, and by landing or lease. Kernels of longer ones are called by
/// other threads, and no seed says when those are done.
const LENGTHS: [u64; 4] = [1, 60, 1000, 3000];

/// The longest value.
pub(crate) const BYTES_MAX: u64 = 4 * LENGTHS[LENGTHS.len() - 1];

/// A graph of three fetches: `join`, of two chains; `chosen`, of a branch; `counted`, of a loop.
pub(crate) struct Draft {
    pub(crate) def: GraphDef,
    /// By what each chain changes its input: doubled, and then so much more.
    chains: [Vec<i32>; 2],
    /// Crossings of one step, at most.
    pub(crate) hops: u64,
    length: u64,
}

/// What is fed in one step, and what must come of it.
pub(crate) struct Case {
    pub(crate) feeds: Vec<(&'static str, Tensor)>,
    pub(crate) fetches: Vec<&'static str>,
    pub(crate) expected: Vec<Vec<f64>>,
}

/// Draws devices and numbers.
struct Hand<'a> {
    graph: Builder,
    rng: &'a mut Rng,
    devices: &'a [String],
}

impl Hand<'_> {
    fn anywhere(&mut self) -> String {
        self.devices[self.rng.below(self.devices.len() as u64) as usize].clone()
    }

    fn node(&mut self, op: &str, name: &str, inputs: &[Output]) -> Result<Output, Status> {
        let device = self.anywhere();
        let node = self.graph.node(op).name(name).device(&device);
        node.inputs(inputs.iter().copied()).build()
    }

    fn placeholder(&mut self, name: &str, dtype: DataType) -> Result<Output, Status> {
        let node = self.graph.node("Placeholder").name(name);
        node.attr("dtype", dtype).build()
    }

    fn float(&mut self, value: i32) -> Result<Output, Status> {
        let device = self.anywhere();
        let node = self.graph.node("Const").device(&device);
        let node = node.attr("dtype", DataType::DtFloat);
        node.attr("value", floats(&[], &[value as f32])).build()
    }

    fn one(&mut self, after: NodeId) -> Result<Output, Status> {
        let device = self.anywhere();
        let node = self.graph.node("Const").device(&device).control(after);
        let node = node.attr("dtype", DataType::DtInt32);
        node.attr("value", ints(&[], &[1])).build()
    }

    fn enter(&mut self, data: Output, is_constant: bool) -> Result<Output, Status> {
        let device = self.anywhere();
        let node = self.graph.node("Enter").device(&device).input(data);
        let node = node.attr("frame_name", "loop");
        node.attr("is_constant", is_constant).build()
    }

    fn chain(&mut self, name: &str, from: Output, by: &[i32]) -> Result<Output, Status> {
        let mut value = from;
        for (at, &by) in by.iter().enumerate() {
            let by = self.float(by)?;
            let twice = self.node("AddV2", &format!("{name}_twice_{at}"), &[value, value])?;
            value = self.node("AddV2", &format!("{name}_{at}"), &[twice, by])?;
        }
        Ok(value)
    }

    fn branch(&mut self, value: Output, which: Output) -> Result<(), Status> {
        let [ten, twenty] = [self.float(10)?, self.float(20)?];
        let switch = self.node("Switch", "switch", &[value, which])?;
        let taken = Output { port: 1, ..switch };
        let taken = self.node("AddV2", "taken", &[taken, ten])?;
        let left = self.node("AddV2", "left", &[switch, twenty])?;
        self.node("Merge", "chosen", &[left, taken]).map(drop)
    }

    /// Counts up to `limit`, with each node of the loop on a task of its own.
    fn count(&mut self, from: Output, limit: Output) -> Result<(), Status> {
        let (from, limit) = (self.enter(from, false)?, self.enter(limit, true)?);
        let merge = self.node("Merge", "merge", &[from, from])?;
        let less = self.node("Less", "less", &[merge, limit])?;
        let condition = self.node("LoopCond", "condition", &[less])?;
        let switch = self.node("Switch", "turn", &[merge, condition])?;
        let body = self.node("Identity", "body", &[Output { port: 1, ..switch }])?;
        let one = self.one(body.node)?;
        let sum = self.node("AddV2", "sum", &[body, one])?;
        let next = self.node("NextIteration", "next", &[sum])?;
        self.graph.set_input(merge.node, 1, next)?;
        self.node("Exit", "counted", &[switch]).map(drop)
    }
}

impl Draft {
    /// A graph over these devices.
    pub(crate) fn new(rng: &mut Rng, devices: &[String]) -> Result<Self, Status> {
        let length = LENGTHS[rng.below(LENGTHS.len() as u64) as usize];
        let chains = [(); 2].map(|()| {
            let links = 1 + rng.below(CHAIN_MAX);
            (0..links).map(|_| rng.below(50) as i32).collect::<Vec<_>>()
        });
        let graph = Builder::new(Operations::standard().ops());
        let mut hand = Hand {
            graph,
            rng,
            devices,
        };
        let x = hand.placeholder("x", DataType::DtFloat)?;
        let which = hand.placeholder("which", DataType::DtBool)?;
        let limit = hand.placeholder("limit", DataType::DtInt32)?;
        let from = hand.placeholder("from", DataType::DtInt32)?;
        let ends = [
            hand.chain("a", x, &chains[0])?,
            hand.chain("b", x, &chains[1])?,
        ];
        hand.node("Sub", "join", &ends)?;
        hand.branch(x, which)?;
        hand.count(from, limit)?;
        // Each node may have its inputs from elsewhere; those of a loop in each iteration, which its steering crosses
        // as well.
        let hops = 2 * (2 * CHAIN_MAX) + 8 + (LOOP_MAX + 1) * 20;
        Ok(Self {
            def: hand.graph.finish()?.to_def(),
            chains,
            hops,
            length,
        })
    }

    /// A step: some of what can be fetched.
    pub(crate) fn case(&self, rng: &mut Rng) -> Result<Case, Status> {
        let x: Vec<f32> = (0..self.length).map(|_| rng.below(100) as f32).collect();
        let (which, limit) = (rng.one_in(2), rng.below(LOOP_MAX + 1) as i32);
        let shape = Shape::row(self.length).unwrap_or(Shape::SCALAR);
        let feeds = vec![
            ("x", Tensor::from_vec(x.clone(), shape)?),
            ("which", Tensor::scalar(Bool8::from(which))),
            ("limit", Tensor::scalar(limit)),
            ("from", Tensor::scalar(0_i32)),
        ];
        let chain =
            |chain: &[i32], x: f32| chain.iter().fold(x, |value, &by| 2.0 * value + by as f32);
        let added = if which { 10.0 } else { 20.0 };
        let of_each = |what: &dyn Fn(f32) -> f32| x.iter().map(|&x| f64::from(what(x))).collect();
        let join = of_each(&|x| chain(&self.chains[0], x) - chain(&self.chains[1], x));
        let chosen = of_each(&|x| x + added);
        let all = [
            ("join", join),
            ("chosen", chosen),
            ("counted", vec![f64::from(limit)]),
        ];
        let only = rng.below(6) as usize;
        let taken = all
            .into_iter()
            .enumerate()
            .filter(|(at, _)| only >= 3 || *at == only);
        let (fetches, expected) = taken.map(|(_, fetch)| fetch).unzip();
        Ok(Case {
            feeds,
            fetches,
            expected,
        })
    }
}

/// The numbers of a fetched tensor.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    if let Ok(floats) = tensor.as_slice::<f32>() {
        return floats.iter().map(|&number| number.into()).collect();
    }
    let counted = tensor.as_slice::<i32>();
    counted.map_or(vec![], |counted| {
        counted.iter().map(|&number| number.into()).collect()
    })
}
