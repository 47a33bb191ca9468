//! An interpreter of graphs over rows of integers: the oracle that whole and cut graphs are held against.
//!
//! Knows the messages and nothing of how a graph was cut. It runs the dataflow model as TensorFlow's executor does:
//! ready counts, dead values, frames and iterations, exits of loops that were never taken; a send or a receive runs
//! whether what it waited for is dead or not.

use std::collections::{BTreeMap, VecDeque};

use crate::graph::attr;
use crate::graph::flow::parse_input;
use rendez_proto::tensorflow::{GraphDef, NodeDef};

/// A row of integers; `None` is dead.
pub(crate) type Value = Option<Vec<i64>>;
/// What every node gave, by name, frame and iteration.
pub(crate) type Trace = BTreeMap<(String, String, u64), Vec<Value>>;

/// How a run ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) trace: Trace,
    /// Receives that nothing was sent to, and sends that were not received.
    pub(crate) left: Vec<String>,
    pub(crate) sends: usize,
}

/// Runs the parts beside each other until nothing can run.
pub(crate) fn run(parts: &[&GraphDef]) -> Outcome {
    let mut machine = Machine {
        executors: parts.iter().map(|part| Executor::new(part)).collect(),
        ..Machine::default()
    };
    for index in 0..machine.executors.len() {
        for node in 0..machine.executors[index].nodes.len() {
            if machine.executors[index].nodes[node].waits == 0 {
                machine.make_ready(
                    index,
                    Task {
                        node,
                        frame: 0,
                        iter: 0,
                    },
                    false,
                );
            }
        }
    }
    let mut fuel = 2_000_000;
    while let Some((executor, task, dead)) = machine.ready.pop_front() {
        machine.step(executor, task, dead);
        fuel -= 1;
        assert!(fuel > 0, "the graph does not come to an end");
    }
    let waiting = machine.waiting.keys().map(|key| format!("receive {key:?}"));
    let sent = machine.sent.iter().filter(|(_, queue)| !queue.is_empty());
    machine.outcome.left = waiting
        .chain(sent.map(|(key, _)| format!("send {key:?}")))
        .collect();
    machine.outcome
}

type KeyText = (String, String, u64);

#[derive(Default)]
struct Machine {
    executors: Vec<Executor>,
    ready: VecDeque<(usize, Task, bool)>,
    sent: BTreeMap<KeyText, VecDeque<Value>>,
    waiting: BTreeMap<KeyText, (usize, Task)>,
    outcome: Outcome,
}

struct Executor {
    nodes: Vec<Instance>,
    frames: Vec<Frame>,
    enters_of: BTreeMap<String, usize>,
}

struct Instance {
    def: NodeDef,
    data: usize,
    waits: usize,
    /// Consumers: which of our outputs, which node, which of its inputs; no output for control edges.
    readers: Vec<(Option<usize>, usize, Option<usize>)>,
}

#[derive(Default)]
struct Frame {
    path: String,
    parent: Option<(usize, u64)>,
    states: BTreeMap<(u64, usize), State>,
    last: u64,
    enters_left: usize,
    outstanding: usize,
    children: BTreeMap<(String, u64), usize>,
    children_open: usize,
    invariants: Vec<(usize, Value)>,
    dead_exits: Vec<(usize, u64)>,
    closed: bool,
}

#[derive(Default)]
struct State {
    data: Vec<Value>,
    arrived: usize,
    controls: usize,
    dead: usize,
    control_dead: bool,
    live: bool,
    dead_enter: bool,
    fired: bool,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    node: usize,
    frame: usize,
    iter: u64,
}

impl Executor {
    fn new(def: &GraphDef) -> Self {
        let ids: BTreeMap<&str, usize> = (0..)
            .zip(&def.node)
            .map(|(id, node)| (node.name.as_str(), id))
            .collect();
        assert_eq!(ids.len(), def.node.len(), "names are unique");
        let mut nodes: Vec<Instance> = def
            .node
            .iter()
            .map(|node| Instance {
                def: node.clone(),
                data: node
                    .input
                    .iter()
                    .filter(|text| !text.starts_with('^'))
                    .count(),
                waits: node.input.len(),
                readers: vec![],
            })
            .collect();
        let mut enters_of = BTreeMap::new();
        for (id, node) in def.node.iter().enumerate() {
            for (input, text) in node.input.iter().enumerate() {
                let (name, port) = parse_input(text).expect("an input");
                let from = *ids
                    .get(name)
                    .unwrap_or_else(|| panic!("{} reads {name}, which is elsewhere", node.name));
                let reader = (port.map(|port| port as usize), id, port.map(|_| input));
                nodes[from].readers.push(reader);
            }
            if node.op == "Enter" {
                *enters_of.entry(frame_name(node)).or_insert(0) += 1;
            }
        }
        Self {
            nodes,
            frames: vec![Frame::default()],
            enters_of,
        }
    }
}

impl Machine {
    fn make_ready(&mut self, executor: usize, task: Task, dead: bool) {
        self.executors[executor].frames[task.frame].outstanding += 1;
        self.ready.push_back((executor, task, dead));
    }

    fn step(&mut self, index: usize, task: Task, dead: bool) {
        let executor = &self.executors[index];
        let frame = &executor.frames[task.frame];
        let node = &executor.nodes[task.node];
        let data = frame
            .states
            .get(&(task.iter, task.node))
            .map_or(vec![], |state| state.data.clone());
        let path = frame.path.clone();
        let op = node.def.op.clone();
        let outputs = match op.as_str() {
            "_Send" => {
                let key = (edge(&node.def), path.clone(), task.iter);
                let value = if dead { None } else { data[0].clone() };
                self.outcome.sends += 1;
                match self.waiting.remove(&key) {
                    Some((other, receive)) => self.done(other, receive, vec![value], false),
                    None => self.sent.entry(key).or_default().push_back(value),
                }
                vec![]
            }
            "_Recv" => {
                let key = (edge(&node.def), path.clone(), task.iter);
                match self.sent.get_mut(&key).and_then(VecDeque::pop_front) {
                    Some(value) => vec![value],
                    None => {
                        let other = self.waiting.insert(key.clone(), (index, task));
                        assert!(other.is_none(), "two receives wait for {key:?}");
                        return;
                    }
                }
            }
            _ if dead => vec![None; 2],
            _ => compute(&node.def, &data),
        };
        let dead = dead && !op.contains("Recv");
        self.done(index, task, outputs, dead);
    }

    fn done(&mut self, index: usize, task: Task, outputs: Vec<Value>, dead: bool) {
        let executor = &mut self.executors[index];
        let def = &executor.nodes[task.node].def;
        let op = def.op.clone();
        let key = (
            def.name.clone(),
            executor.frames[task.frame].path.clone(),
            task.iter,
        );
        // What cutting made has no name outside its part.
        if !def.name.contains("/_") {
            let again = self.outcome.trace.insert(key, outputs.clone());
            assert!(again.is_none(), "{} ran twice in one iteration", def.name);
        }
        match op.as_str() {
            "Enter" => self.enter(index, task, outputs, dead),
            "Exit" if dead => {
                executor.frames[task.frame]
                    .dead_exits
                    .push((task.node, task.iter));
            }
            "Exit" => {
                let (frame, iter) = executor.frames[task.frame]
                    .parent
                    .expect("an exit is in a loop");
                self.propagate(
                    index,
                    Task {
                        frame,
                        iter,
                        ..task
                    },
                    &outputs,
                    dead,
                );
            }
            "NextIteration" if dead => {}
            "NextIteration" => {
                let iter = task.iter + 1;
                if executor.frames[task.frame].last < iter {
                    executor.frames[task.frame].last = iter;
                    for (node, value) in executor.frames[task.frame].invariants.clone() {
                        let dead = value.is_none();
                        self.propagate(index, Task { node, iter, ..task }, &[value], dead);
                    }
                }
                self.propagate(index, Task { iter, ..task }, &outputs, dead);
            }
            _ => self.propagate(index, task, &outputs, dead),
        }
        self.executors[index].frames[task.frame].outstanding -= 1;
        self.close(index, task.frame);
    }

    fn enter(&mut self, index: usize, task: Task, outputs: Vec<Value>, dead: bool) {
        let executor = &mut self.executors[index];
        let def = &executor.nodes[task.node].def;
        let name = frame_name(def);
        let constant = attr::bool(&def.attr, "is_constant").unwrap_or(false);
        let known = executor.frames[task.frame]
            .children
            .get(&(name.clone(), task.iter));
        let frame = known.copied().unwrap_or_else(|| {
            let path = format!("{}/{name}:{}", executor.frames[task.frame].path, task.iter);
            let id = executor.frames.len();
            executor.frames[task.frame]
                .children
                .insert((name.clone(), task.iter), id);
            executor.frames[task.frame].children_open += 1;
            executor.frames.push(Frame {
                path,
                parent: Some((task.frame, task.iter)),
                enters_left: executor.enters_of[&name],
                ..Frame::default()
            });
            id
        });
        executor.frames[frame].enters_left -= 1;
        let value = outputs.into_iter().next().flatten();
        let last = executor.frames[frame].last;
        if constant {
            executor.frames[frame]
                .invariants
                .push((task.node, value.clone()));
        }
        for iter in 0..=if constant { last } else { 0 } {
            let at = Task {
                frame,
                iter,
                ..task
            };
            self.propagate(index, at, std::slice::from_ref(&value), dead);
        }
        self.close(index, frame);
    }

    /// Ends a loop in which nothing can run any more: exits that were not taken are dead.
    fn close(&mut self, index: usize, at: usize) {
        let frame = &mut self.executors[index].frames[at];
        let Some((parent, iter)) = frame.parent else {
            return;
        };
        if frame.closed || frame.enters_left > 0 || frame.outstanding > 0 || frame.children_open > 0
        {
            return;
        }
        frame.closed = true;
        let last = frame.last;
        let exits = std::mem::take(&mut frame.dead_exits);
        for (node, at) in exits {
            if at == last {
                self.propagate(
                    index,
                    Task {
                        node,
                        frame: parent,
                        iter,
                    },
                    &[None],
                    true,
                );
            }
        }
        self.executors[index].frames[parent].children_open -= 1;
        self.close(index, parent);
    }

    fn propagate(&mut self, index: usize, task: Task, outputs: &[Value], dead: bool) {
        for reader in 0..self.executors[index].nodes[task.node].readers.len() {
            let (port, to, input) = self.executors[index].nodes[task.node].readers[reader];
            let value = port.map(|port| outputs.get(port).cloned().flatten());
            self.deliver(index, task, to, input, value, dead);
        }
    }

    /// A value, dead or alive, arrives at an input; without a value, the news that a node has run.
    fn deliver(
        &mut self,
        index: usize,
        from: Task,
        to: usize,
        input: Option<usize>,
        value: Option<Value>,
        dead: bool,
    ) {
        let executor = &mut self.executors[index];
        let is_enter = executor.nodes[from.node].def.op == "Enter";
        let node = &executor.nodes[to];
        let (is_merge, is_trigger) = (node.def.op == "Merge", node.def.op == "ControlTrigger");
        let (data, waits) = (node.data, node.waits);
        let state = executor.frames[from.frame]
            .states
            .entry((from.iter, to))
            .or_default();
        state.data.resize(data, None);
        state.arrived += 1;
        match (input, value) {
            (Some(input), Some(value)) => {
                state.live |= value.is_some();
                state.dead += usize::from(value.is_none());
                state.dead_enter |= value.is_none() && is_enter;
                state.data[input] = value;
            }
            _ => {
                state.controls += 1;
                state.control_dead |= dead;
            }
        }
        let (ready, dead) = if is_merge {
            let all_dead = state.dead == data || state.dead_enter;
            let controls = state.controls == waits - data;
            (controls && (state.live || all_dead), !state.live)
        } else {
            let dead = (state.dead > 0 || state.control_dead) && !is_trigger;
            (state.arrived == waits, dead)
        };
        if ready && !state.fired {
            state.fired = true;
            let task = Task { node: to, ..from };
            self.make_ready(index, task, dead);
        }
    }
}

fn compute(def: &NodeDef, data: &[Value]) -> Vec<Value> {
    let row = |index: usize| data[index].clone().expect("alive");
    let both = |f: fn(i64, i64) -> i64| {
        let (left, right) = (row(0), row(1));
        let len = if left.is_empty() || right.is_empty() {
            0
        } else {
            left.len().max(right.len())
        };
        let pairs = (0..len).map(|at| f(left[at % left.len()], right[at % right.len()]));
        vec![Some(pairs.collect())]
    };
    match def.op.as_str() {
        "Const" => {
            let tensor = attr::tensor(&def.attr, "value").expect("a value");
            vec![Some(
                tensor.int_val.iter().map(|&number| number.into()).collect(),
            )]
        }
        "AddV2" => both(|left, right| wrapped(left.wrapping_add(right))),
        "Sub" => both(|left, right| wrapped(left.wrapping_sub(right))),
        "Mul" => both(|left, right| wrapped(left.wrapping_mul(right))),
        // What steers is one truth.
        "Less" => vec![Some(vec![(row(0)[0] < row(1)[0]).into()])],
        "Identity" | "LoopCond" | "Enter" | "Exit" | "NextIteration" | "Cast" => vec![Some(row(0))],
        "NoOp" | "ControlTrigger" => vec![],
        "Switch" if row(1)[0] != 0 => vec![None, Some(row(0))],
        "Switch" => vec![Some(row(0)), None],
        "Merge" => {
            let live: Vec<_> = (0..)
                .zip(data)
                .filter(|(_, value)| value.is_some())
                .collect();
            assert_eq!(live.len(), 1, "{} has one live input", def.name);
            vec![live[0].1.clone(), Some(vec![live[0].0])]
        }
        other => panic!("no kernel for {other}"),
    }
}

/// The numbers of a graph are of 32 bits.
fn wrapped(number: i64) -> i64 {
    i64::from(number as i32)
}

fn frame_name(def: &NodeDef) -> String {
    attr::text(&def.attr, "frame_name")
        .expect("a frame's name")
        .to_owned()
}

fn edge(def: &NodeDef) -> String {
    let text = |name| attr::text(&def.attr, name).expect("a crossing's name");
    let names = [
        text("send_device"),
        text("recv_device"),
        text("tensor_name"),
    ];
    names.join(";")
}
