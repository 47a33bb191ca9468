//! Partition: random graphs run whole and cut, and give the same; and the rules, one by one.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::interpreter::{Outcome, Trace, run};
use super::*;
use crate::graph::attr;
use crate::graph::builder::{Builder, ints};
use crate::graph::flow::{DeviceIndex, Import, Output};
use crate::operations::Operations;
use rendez::ground::Incarnation;
use rendez::ground::rng::Rng;
use rendez_proto::tensorflow::TensorProto;

/// Random programs over random devices, and one more for what stands apart from the rest of its loop.
struct Gardener {
    graph: Builder,
    devices: u64,
    dice: Rng,
    budget: usize,
    loops: usize,
    /// Nodes are put on one more device, which has no others.
    is_apart: bool,
}

impl Gardener {
    fn device(&mut self) -> DeviceIndex {
        let device = if self.is_apart {
            self.devices
        } else {
            self.roll(self.devices)
        };
        DeviceIndex(device as u32)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice.next_u64() % sides
    }

    fn pick(&mut self, pool: &[Output]) -> Output {
        pool[self.roll(pool.len() as u64) as usize]
    }

    fn add(&mut self, op: &str, inputs: &[Output], controls: &[Output]) -> Output {
        self.budget = self.budget.saturating_sub(1);
        let device = self.device();
        let mut node = self.graph.node(op).inputs(inputs.iter().copied());
        for control in controls {
            node = node.control(control.node);
        }
        let made = node.build().expect("a node");
        self.graph.graph.assign(made.node, device);
        made
    }

    fn constant(&mut self, after: Option<Output>) -> Output {
        let value = self.roll(7) as i32 - 3;
        let len = 1 + self.roll(3) as i64;
        let values = vec![value; len as usize];
        self.tensor(ints(&[len], &values), after)
    }

    fn number(&mut self, value: i32, after: Output) -> Output {
        self.tensor(ints(&[1], &[value]), Some(after))
    }

    fn tensor(&mut self, value: TensorProto, after: Option<Output>) -> Output {
        let device = self.device();
        let mut node = self
            .graph
            .node("Const")
            .attr("dtype", DataType::DtInt32)
            .attr("value", value);
        if let Some(after) = after {
            node = node.control(after.node);
        }
        let made = node.build().expect("a constant");
        self.graph.graph.assign(made.node, device);
        made
    }

    /// Grows a block from values that are alive when it is. All that is in `pool` then is so too.
    fn block(&mut self, pool: &mut Vec<Output>, depth: u32) {
        let steps = 1 + self.roll(6);
        for _ in 0..steps {
            if self.budget == 0 {
                return;
            }
            let (left, right) = (self.pick(pool), self.pick(pool));
            let made = match self.roll(12) {
                0..=3 => {
                    let op = ["AddV2", "Sub", "Mul"][self.roll(3) as usize];
                    self.add(op, &[left, right], &[])
                }
                4 => self.add("Identity", &[left], &[right]),
                5 => self.constant(Some(left)),
                6 => {
                    let other = self.pick(pool);
                    let gate = self.add("NoOp", &[], &[left, right]);
                    self.add("Identity", &[other], &[gate])
                }
                7 => {
                    let gate = self.add("ControlTrigger", &[], &[left]);
                    self.add("Identity", &[right], &[gate])
                }
                8 | 9 if depth < 3 => self.condition(pool, depth),
                10 | 11 if depth < 3 => self.while_loop(pool, depth),
                _ => self.add("Identity", &[left], &[]),
            };
            pool.push(made);
        }
    }

    fn condition(&mut self, pool: &[Output], depth: u32) -> Output {
        let (left, right) = (self.pick(pool), self.pick(pool));
        let truth = self.add("Less", &[left, right], &[]);
        let data = self.pick(pool);
        let switch = self.add("Switch", &[data, truth], &[]);
        let mut ends = vec![];
        for port in 0..2 {
            let side = Output { port, ..switch };
            // A control edge from one side carries its death to the nodes that wait for it.
            let pivot = self.add("Identity", &[side], &[]);
            let mut inner = vec![pivot];
            self.block(&mut inner, depth + 1);
            let end = self.pick(&inner);
            let kept = self.pick(pool);
            let kept = self.add("Identity", &[kept], &[pivot]);
            ends.push(self.add("AddV2", &[end, kept], &[pivot]));
        }
        self.add("Merge", &ends, &[])
    }

    fn enter(&mut self, data: Output, frame: &str, constant: bool) -> Output {
        let device = self.device();
        let node = self
            .graph
            .node("Enter")
            .input(data)
            .attr("frame_name", frame);
        let made = node
            .attr("is_constant", constant)
            .build()
            .expect("an enter");
        self.graph.graph.assign(made.node, device);
        made
    }

    fn while_loop(&mut self, pool: &[Output], depth: u32) -> Output {
        self.loops += 1;
        let frame = format!("loop{}", self.loops);
        let after = self.pick(pool);
        let zero = self.number(0, after);
        let turns = self.roll(4) as i32;
        let end = self.number(turns, after);
        let limit = self.enter(end, &frame, true);
        let count = 1 + self.roll(2) as usize;
        let mut merges = vec![];
        for at in 0..=count {
            let initial = if at == 0 { zero } else { self.pick(pool) };
            let entered = self.enter(initial, &frame, false);
            merges.push(self.add("Merge", &[entered, entered], &[]));
        }
        let less = self.add("Less", &[merges[0], limit], &[]);
        let condition = self.add("LoopCond", &[less], &[]);
        let switches: Vec<_> = merges
            .iter()
            .map(|&merge| self.add("Switch", &[merge, condition], &[]))
            .collect();
        // A Switch itself is alive when one of its sides is dead: a node that waits for it waits for no side.
        let sides = switches
            .iter()
            .map(|&switch| self.add("Identity", &[Output { port: 1, ..switch }], &[]));
        let mut inner: Vec<_> = sides.collect();
        let turn = self.add("Identity", &[inner[0]], &[]);
        inner.push(turn);
        let outside = self.pick(pool);
        let invariant = self.enter(outside, &frame, true);
        let with = self.add("AddV2", &[turn, invariant], &[]);
        inner.push(with);
        if self.roll(2) == 0 {
            // What depends on nothing but invariants is alive in every iteration, so it has a pool of its own. It
            // stands where no other node of the loop does.
            let is_apart = std::mem::replace(&mut self.is_apart, true);
            let mut lasting = vec![self.enter(outside, &frame, true)];
            self.block(&mut lasting, depth + 1);
            self.is_apart = is_apart;
            let lasts = self.pick(&lasting);
            let joined = self.add("Sub", &[lasts, turn], &[]);
            inner.push(joined);
        }
        self.block(&mut inner, depth + 1);
        let one = self.number(1, turn);
        for (at, &merge) in merges.iter().enumerate() {
            let value = if at == 0 {
                self.add("AddV2", &[inner[0], one], &[])
            } else {
                let value = self.pick(&inner);
                self.add("Sub", &[value, inner[at]], &[])
            };
            let next = self.add("NextIteration", &[value], &[]);
            self.graph.set_input(merge.node, 1, next).expect("a loop");
        }
        let exits: Vec<_> = switches
            .iter()
            .map(|&switch| self.add("Exit", &[switch], &[]))
            .collect();
        exits[self.roll(exits.len() as u64) as usize]
    }
}

fn names(devices: u64, of_each: u64) -> Vec<(String, Incarnation)> {
    let name = |index: u64| {
        let text = format!(
            "/job:j/replica:0/task:{}/device:CPU:{}",
            index / of_each,
            index % of_each
        );
        (text, Incarnation(1000 + index))
    };
    (0..devices).map(name).collect()
}

/// A device in each of so many tasks.
pub(crate) fn devices(count: u64) -> Devices {
    in_tasks(count, 1)
}

/// Devices, so many of each task.
fn in_tasks(count: u64, of_each: u64) -> Devices {
    let names = names(count, of_each);
    let names = names.iter().map(|(name, life)| (name.as_str(), *life));
    Devices::new(names).expect("devices")
}

pub(crate) fn program(seed: u64, budget: usize, devices: u64) -> Graph {
    let mut gardener = Gardener {
        graph: Builder::new(Operations::standard().ops()),
        devices: devices - 1,
        dice: Rng::new(seed),
        budget,
        loops: 0,
        is_apart: false,
    };
    let mut pool = vec![gardener.constant(None), gardener.constant(None)];
    while gardener.budget > 0 {
        gardener.block(&mut pool, 0);
    }
    gardener.graph.finish().expect("a graph")
}

/// What the nodes of `whole` gave in a cut run. Exits and next iterations of values that died say nothing.
fn same(whole: &Trace, cut: &Trace) -> Result<(), TestCaseError> {
    for (key, outputs) in whole {
        prop_assert_eq!(Some(outputs), cut.get(key), "{:?}", key);
    }
    let known: BTreeSet<_> = whole.keys().map(|key| &key.0).collect();
    for key in cut.keys().filter(|key| known.contains(&key.0)) {
        prop_assert!(
            whole.contains_key(key),
            "{:?} ran only where it was cut",
            key
        );
    }
    Ok(())
}

fn check_parts(parts: &Parts, ops: &Ops) -> Result<(), TestCaseError> {
    for (name, part) in parts {
        let read = Graph::from_def(part.clone(), ops, Import::Part);
        prop_assert!(read.is_ok(), "{}: {:?}", name, read.err());
    }
    Ok(())
}

fn hold(whole: &Outcome, parts: &Parts) -> Result<(), TestCaseError> {
    let cut = run(&parts.values().collect::<Vec<_>>());
    prop_assert!(cut.left.is_empty(), "{:?}", cut.left);
    same(&whole.trace, &cut.trace)
}

proptest! {
    // A case is a whole program, run several times.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn a_cut_graph_gives_what_the_whole_one_gives(seed: u64, budget in 5usize..120, count in 2u64..7) {
        let standard = Operations::standard();
        let ops = standard.ops();
        let graph = program(seed, budget, count);
        let whole = run(&[&graph.to_def()]);
        prop_assert!(whole.left.is_empty());
        for of_each in 1..3 {
            let devices = in_tasks(count, of_each);
            let parts = partition(graph.clone(), &devices, ops, false).expect("parts");
            check_parts(&parts, ops)?;
            hold(&whole, &parts)?;
        }
    }
}

/// A graph of nodes on devices by number.
struct Bench(Builder);

impl Bench {
    fn new() -> Self {
        Self(Builder::new(Operations::standard().ops()))
    }

    fn put(
        &mut self,
        device: u32,
        op: &str,
        name: &str,
        inputs: &[Output],
        after: &[Output],
    ) -> Output {
        let mut node = self.0.node(op).name(name).inputs(inputs.iter().copied());
        for control in after {
            node = node.control(control.node);
        }
        if matches!(op, "Placeholder" | "VariableV2") {
            node = node.attr("dtype", DataType::DtFloat);
            node = node.attr(
                "shape",
                rendez_proto::tensorflow::TensorShapeProto::default(),
            );
        }
        let made = node.build().expect(name);
        self.0.graph.assign(made.node, DeviceIndex(device));
        made
    }

    fn cut(self, devices: &Devices, narrow: bool) -> Result<Parts, Status> {
        partition(
            self.0.finish()?,
            devices,
            Operations::standard().ops(),
            narrow,
        )
    }
}

fn of_op<'a>(parts: &'a Parts, op: &str) -> Vec<&'a NodeDef> {
    let nodes = parts.values().flat_map(|part| &part.node);
    nodes.filter(|node| node.op == op).collect()
}

#[test]
fn a_value_crosses_once_for_all_its_readers_on_a_device() {
    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    for name in ["a", "b"] {
        bench.put(1, "Neg", name, &[x], &[]);
    }
    bench.put(2, "Neg", "c", &[x], &[]);
    let parts = bench.cut(&devices(3), false).expect("parts");
    let (sends, recvs) = (of_op(&parts, "_Send"), of_op(&parts, "_Recv"));
    assert_eq!((parts.len(), sends.len(), recvs.len()), (3, 2, 2));
    let text = |name| attr::text(&sends[0].attr, name).expect(name);
    assert_eq!(text("tensor_name"), "edge_0_x");
    assert_eq!(text("send_device"), "/job:j/replica:0/task:0/device:CPU:0");
    assert_eq!(text("recv_device"), "/job:j/replica:0/task:1/device:CPU:0");
    assert_eq!((text("_src"), text("_dst")), ("x", "a"));
    assert_eq!(
        attr::int(&sends[0].attr, "send_device_incarnation"),
        Some(1000)
    );
    assert_eq!(attr::bool(&sends[0].attr, "client_terminated"), Some(false));
    assert_eq!(
        attr::data_type(&sends[0].attr, "T"),
        Some(DataType::DtFloat)
    );
    assert_eq!(
        attr::data_type(&recvs[0].attr, "tensor_type"),
        Some(DataType::DtFloat)
    );
    assert_eq!(sends[0].input, ["x"]);
}

#[test]
fn a_wait_crosses_as_a_value_without_elements_of_its_own() {
    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    bench.put(1, "Neg", "a", &[x], &[x]);
    let parts = bench.cut(&devices(2), false).expect("parts");
    // The value's own transfer is not used for the wait.
    assert_eq!(of_op(&parts, "_Send").len(), 2);
    let constant = of_op(&parts, "Const")[0];
    assert_eq!(constant.input, ["^x"]);
    assert_eq!(attr::tensor(&constant.attr, "value"), Some(&empty_floats()));
    let identity = of_op(&parts, "Identity")[0];
    let neg = of_op(&parts, "Neg")[0];
    assert_eq!(neg.input[1], format!("^{}", identity.name));
    assert_eq!(neg.device, "/job:j/replica:0/task:1/device:CPU:0");
}

#[test]
fn reads_of_a_variable_are_not_shared_and_wait_for_what_the_reader_waits_for() {
    let mut bench = Bench::new();
    let v = bench.put(0, "VariableV2", "v", &[], &[]);
    let gate = bench.put(1, "NoOp", "gate", &[], &[]);
    bench.put(1, "Neg", "a", &[v], &[gate]);
    bench.put(1, "Neg", "b", &[v], &[]);
    let parts = bench.cut(&devices(2), false).expect("parts");
    // What is sent is read beside the variable, where the gate has to be heard of.
    let reads = of_op(&parts, "Identity");
    let [heard, read] = &reads[..] else {
        panic!("{reads:?}");
    };
    assert_eq!(read.input, ["v", &format!("^{}", heard.name)]);
    assert!(reads.iter().all(|read| read.device.contains("task:0")));
    let sends = of_op(&parts, "_Send");
    let sent: Vec<_> = sends.iter().map(|send| send.input[0].as_str()).collect();
    assert!(sent.contains(&"v") && sent.contains(&read.name.as_str()));
    let recvs = of_op(&parts, "_Recv");
    assert!(recvs.iter().all(|recv| recv.input.is_empty()), "none waits");
}

#[test]
fn a_read_waits_for_a_write_that_the_reader_waits_for() {
    let mut bench = Bench::new();
    let v = bench.put(0, "VariableV2", "v", &[], &[]);
    let w = bench.put(0, "VariableV2", "w", &[], &[]);
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    let written = bench.put(0, "AssignAdd", "written", &[w, x], &[]);
    bench.put(1, "Add", "sum", &[v, written], &[]);
    let parts = bench.cut(&devices(2), false).expect("parts");
    let reads = of_op(&parts, "Identity");
    let [read] = &reads[..] else {
        panic!("{reads:?}");
    };
    assert_eq!(read.input, ["v", "^written"]);
    let sends = of_op(&parts, "_Send");
    let sent: Vec<_> = sends.iter().map(|send| send.input[0].as_str()).collect();
    assert!(sent.contains(&"written") && sent.contains(&read.name.as_str()));
}

#[test]
fn a_variable_that_is_read_beside_it_needs_no_other_read() {
    let mut bench = Bench::new();
    let v = bench.put(0, "VariableV2", "v", &[], &[]);
    let gate = bench.put(0, "Placeholder", "gate", &[], &[]);
    bench.put(0, "Range", "range", &[v, gate, gate], &[]);
    let parts = bench.cut(&devices(1), false).expect("parts");
    let range = of_op(&parts, "Range");
    assert_eq!(range[0].input, ["v", "gate", "gate"]);
}

#[test]
fn a_merge_reads_a_variable_when_it_may() {
    let mut bench = Bench::new();
    let v = bench.put(0, "VariableV2", "v", &[], &[]);
    let x = bench.put(1, "Placeholder", "x", &[], &[]);
    bench.put(1, "Merge", "m", &[v, x], &[]);
    let parts = bench.cut(&devices(2), false).expect("parts");
    assert_eq!(of_op(&parts, "_Send")[0].input, ["v"]);
}

#[test]
fn a_variable_is_written_where_it_stands() {
    let mut bench = Bench::new();
    let v = bench.put(0, "VariableV2", "v", &[], &[]);
    let x = bench.put(1, "Placeholder", "x", &[], &[]);
    bench.put(1, "Assign", "a", &[v, x], &[]);
    let status = bench
        .cut(&devices(2), false)
        .expect_err("a write elsewhere");
    assert_eq!(status.reason(), "GRAPH_PLACEMENT");
}

#[test]
fn floats_can_cross_as_half_of_their_bytes() {
    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    bench.put(1, "Neg", "a", &[x], &[x]);
    let parts = bench.cut(&devices(2), true).expect("parts");
    let casts = of_op(&parts, "Cast");
    assert_eq!(casts.len(), 2);
    assert_eq!(attr::bool(&casts[0].attr, "Truncate"), Some(true));
    assert_eq!(of_op(&parts, "Neg")[0].input[0], casts[1].name);
    check_parts(&parts, Operations::standard().ops()).expect("parts that can be read");
}

#[test]
fn what_was_there_before_is_given_its_incarnation() {
    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    let send = bench.0.node("_Send").input(x).attr("tensor_name", "t");
    let device = "/job:j/replica:0/task:0/device:CPU:0";
    let send = send
        .attr("send_device", device)
        .attr("recv_device", device)
        .build()
        .expect("send");
    bench.0.graph.assign(send.node, DeviceIndex(0));
    let parts = bench.cut(&devices(1), false).expect("parts");
    assert_eq!(
        attr::int(&of_op(&parts, "_Send")[0].attr, "send_device_incarnation"),
        Some(1000)
    );
}

#[test]
fn what_was_not_placed_or_cannot_be_led_is_refused() {
    let mut bench = Bench::new();
    bench.0.node("NoOp").name("n").build().expect("n");
    let status = bench.cut(&devices(1), false).expect_err("not placed");
    assert_eq!(
        (status.reason(), status.code()),
        ("GRAPH_DEVICE", rendez::ground::Code::Internal)
    );
    assert!(
        status
            .message()
            .starts_with("Malformed assigned device ''; {{node n}}"),
        "{status}"
    );

    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    let enter = bench
        .0
        .node("Enter")
        .input(x)
        .attr("frame_name", "f")
        .build()
        .expect("enter");
    bench.0.graph.assign(enter.node, DeviceIndex(0));
    let a = bench.put(0, "Neg", "a", &[enter], &[]);
    bench.put(1, "Neg", "b", &[a], &[]);
    let status = bench.cut(&devices(2), false).expect_err("no condition");
    assert_eq!(
        status.message(),
        "A cross-device loop must have a pivot predicate: f"
    );
}

#[test]
fn a_loop_in_an_untaken_branch_ends_everywhere() {
    // The condition's side with the loop is dead, and the loop stands on two devices.
    let mut bench = Bench::new();
    let number = |bench: &mut Bench, device: u32, value: i32| {
        let made = bench
            .0
            .constant("number", ints(&[], &[value]))
            .expect("a number");
        bench.0.graph.assign(made.node, DeviceIndex(device));
        made
    };
    let (one, two) = (number(&mut bench, 0, 1), number(&mut bench, 1, 2));
    let truth = bench.put(0, "Less", "truth", &[two, one], &[]);
    let switch = bench.put(0, "Switch", "switch", &[one, truth], &[]);
    let taken = Output { port: 1, ..switch };
    let enter = bench
        .0
        .node("Enter")
        .input(taken)
        .attr("frame_name", "f")
        .build()
        .expect("enter");
    bench.0.graph.assign(enter.node, DeviceIndex(0));
    let merge = bench.put(0, "Merge", "merge", &[enter, enter], &[]);
    let less = bench.put(1, "Less", "less", &[merge, merge], &[]);
    let cond = bench.put(0, "LoopCond", "cond", &[less], &[]);
    let turn = bench.put(0, "Switch", "turn", &[merge, cond], &[]);
    let body = bench.put(1, "Neg", "body", &[Output { port: 1, ..turn }], &[]);
    let body = bench.put(1, "Identity", "kept", &[body], &[]);
    let next = bench.put(1, "NextIteration", "next", &[body], &[]);
    bench.0.set_input(merge.node, 1, next).expect("a loop");
    let exit = bench.put(1, "Exit", "exit", &[turn], &[]);
    let out = bench.put(
        1,
        "Merge",
        "out",
        &[exit, Output { port: 0, ..switch }],
        &[],
    );
    bench.put(0, "Identity", "end", &[out], &[]);
    let graph = bench.0.finish().expect("a graph");
    let whole = run(&[&graph.to_def()]);
    assert_eq!(
        whole.trace[&("end".to_owned(), String::new(), 0)],
        [Some(vec![1])]
    );
    let parts = partition(graph, &devices(2), Operations::standard().ops(), false).expect("parts");
    hold(&whole, &parts).expect("the same");
}

#[test]
fn what_reads_invariants_alone_runs_in_every_iteration() {
    let mut bench = Bench::new();
    let enter = |bench: &mut Bench, device: u32, value: i32, is_constant: bool| {
        let number = bench.0.constant("number", ints(&[], &[value]));
        let number = number.expect("a number");
        bench.0.graph.assign(number.node, DeviceIndex(device));
        let node = bench.0.node("Enter").input(number).attr("frame_name", "f");
        let made = node.attr("is_constant", is_constant).build();
        let made = made.expect("an enter");
        bench.0.graph.assign(made.node, DeviceIndex(device));
        made
    };
    let begin = enter(&mut bench, 0, 0, false);
    let [limit, one] = [3, 1].map(|value| enter(&mut bench, 0, value, true));
    let apart = enter(&mut bench, 1, 5, true);
    let merge = bench.put(0, "Merge", "merge", &[begin, begin], &[]);
    let less = bench.put(0, "Less", "less", &[merge, limit], &[]);
    let cond = bench.put(0, "LoopCond", "cond", &[less], &[]);
    let turn = bench.put(0, "Switch", "turn", &[merge, cond], &[]);
    let more = bench.put(0, "AddV2", "more", &[Output { port: 1, ..turn }, one], &[]);
    let next = bench.put(0, "NextIteration", "next", &[more], &[]);
    bench.0.set_input(merge.node, 1, next).expect("a loop");
    bench.put(0, "Exit", "exit", &[turn], &[]);
    // No edge leads to where this stands.
    bench.put(1, "Identity", "apart", &[apart], &[]);
    let graph = bench.0.finish().expect("a graph");
    let whole = run(&[&graph.to_def()]);
    let runs = whole.trace.keys().filter(|key| key.0 == "apart");
    assert_eq!(runs.count(), 4);
    let parts = partition(graph, &devices(2), Operations::standard().ops(), false).expect("parts");
    hold(&whole, &parts).expect("the same");
}

/// 100 000 nodes are cut within two seconds, and ten times as many edges take about ten times as long. Unoptimised
/// test builds on a busy machine are given room.
#[test]
fn a_large_graph_is_cut_in_near_linear_time() {
    let layers = |count: u32| {
        let mut bench = Bench::new();
        let mut row: Vec<_> = (0..10)
            .map(|at| bench.put(at, "Placeholder", "x", &[], &[]))
            .collect();
        for layer in 0..count / 10 {
            let next = |at: u32| {
                let name = format!("tower_{at}/layer_{layer}/add");
                bench.put(
                    at,
                    "Add",
                    &name,
                    &[row[at as usize], row[(at as usize + 1) % 10]],
                    &[],
                )
            };
            row = (0..10).map(next).collect();
        }
        let parts = bench.cut(&devices(10), false).expect("parts");
        assert_eq!(of_op(&parts, "_Send").len(), count as usize);
        assert_eq!(
            parts.values().map(|part| part.node.len()).sum::<usize>(),
            10 + 3 * count as usize
        );
    };
    layers(10_000);
}

/// One node with many inputs and control inputs costs no more than many nodes with as many edges. It would take minutes
/// if each input looked at all the others.
#[test]
fn a_node_of_many_inputs_is_cut_in_near_linear_time() {
    let (inputs, controls) = (16_000, 20_000);
    let mut bench = Bench::new();
    let x = bench.put(0, "Placeholder", "x", &[], &[]);
    let before = |at| bench.put(0, "NoOp", &format!("before_{at}"), &[], &[]);
    let before: Vec<_> = (0..controls).map(before).collect();
    bench.put(0, "AddN", "sum", &vec![x; inputs], &before);
    let parts = bench.cut(&devices(1), false).expect("parts");
    let sum = &of_op(&parts, "AddN")[0];
    assert_eq!(sum.input.len(), inputs + controls);
}
