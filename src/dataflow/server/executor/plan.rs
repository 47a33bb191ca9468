//! Plan: one part of a graph as it is run: flat, checked, with its kernels made.
//!
//! It knows nothing of steps and shards. What nodes wait for is counted for each frame of a loop apart, since each
//! iteration has counts of its own:
//!
//! ```text
//!   nodes    kind, kernel, frame, place of its count and its inputs in an iteration of that frame
//!   edges    by node and output, control edges last: the reader, and where its input lies
//!   frames   the counts and the number of inputs that an iteration begins with
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::graph::{Frames, Graph, Node, NodeId, Role, attr, types};
use crate::kernel::Value;
use crate::kernel::kept::KeptKernels;
use crate::kernel::{Call, Kernel};
use rendez::ground::hash::{fnv1a, mix};
use rendez::ground::limits::{LOOP_PARALLEL_MAX, RUN_VALUES_MAX};
use rendez::ground::{
    DType, DeviceName, FrameIter, Incarnation, Key, Status, TaskName, catalogue, faults,
};
use rendez_proto::tensorflow::DataType;

use super::Shared;

/// Where a plan's kernels come from.
pub(super) type KernelSource = dyn Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync;

/// One part of a graph, ready to be run any number of times.
#[derive(Debug)]
pub struct Plan {
    pub(super) name: String,
    pub(super) nodes: Vec<PlanNode>,
    /// For each output of each node, and for its control edges, where they begin in `edges`; and where the last end.
    ports: Vec<u32>,
    edges: Vec<Edge>,
    pub(super) frames: Vec<PlanFrame>,
    /// Nodes that wait for nothing.
    pub(super) roots: Vec<u32>,
    pub(super) keys: Vec<Key>,
    /// Arguments that are read: one more than the highest number.
    pub(super) args: usize,
    /// The nodes that give results, by the result's number.
    pub(super) results: Vec<Option<u32>>,
    /// Bytes that a run takes at least.
    pub(super) run_bytes: usize,
    pub(super) id: u64,
    /// Whose plan it is: its shards hear when it goes.
    pub(super) shared: Option<Arc<Shared>>,
}

/// A node of a plan.
#[derive(Debug)]
pub(super) struct PlanNode {
    pub(super) kind: NodeKind,
    /// What computes it, if that is not for the executor.
    pub(super) kernel: Option<Arc<dyn Kernel>>,
    /// Its count in an iteration of the frame that its inputs are in.
    pub(super) count: u32,
    /// Its first input in an iteration of that frame, and how many there are.
    pub(super) slot: u32,
    pub(super) inputs: u32,
    /// Its first output in `Plan::ports`, and how many there are.
    port: u32,
    pub(super) outputs: u32,
    /// What flows in is wanted as a value: a variable is read.
    pub(super) reads: bool,
    /// The element type of what it receives or is given; `None` for handles.
    pub(super) dtype: Option<DType>,
    pub(super) name: Box<str>,
    pub(super) op: &'static str,
}

/// What running a node means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    /// Call its kernel.
    Compute,
    /// Nothing but to wait.
    Nothing,
    /// The same, dead or alive.
    Trigger,
    /// Pass its input on.
    Forward,
    Switch,
    Merge,
    Enter {
        frame: u32,
        is_constant: bool,
    },
    Exit,
    NextIteration,
    /// Send and receive, by the number of a key.
    Send(u32),
    Recv(u32),
    /// Take an argument, give a result, by number.
    Arg(u32),
    Retval(u32),
}

/// A node that reads an output or waits for a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) to: u32,
    /// Its input in an iteration; nothing for a control edge.
    pub(super) slot: u32,
}

/// A loop's frame, or the root.
#[derive(Debug)]
pub(super) struct PlanFrame {
    /// The hash of its name, for the names of what is sent in it.
    pub(super) name: u64,
    /// Nodes that enter it.
    pub(super) enters: u32,
    /// Iterations that may be under way at once.
    pub(super) parallel: usize,
    /// What an iteration begins with.
    pub(super) counts: Vec<Count>,
    pub(super) slots: usize,
    /// Frames entered from it, and which of those of its parent it is.
    pub(super) children: usize,
    pub(super) child: usize,
}

/// What a node still waits for in an iteration, and what came.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Count {
    /// Inputs and nodes that it waits for; of a Merge, nodes alone.
    pub(super) waits: u32,
    /// Inputs that are dead.
    pub(super) dead: u32,
    /// Of a Merge: which input is alive, plus one.
    pub(super) chosen: u32,
    /// It waited for a node that is dead.
    pub(super) is_control_dead: bool,
    /// Of a Merge: nothing enters the loop, so nothing will come from its iterations either.
    pub(super) is_never_entered: bool,
    /// It is ready, or has run.
    pub(super) has_fired: bool,
}

/// Whose plan it is: what the keys of its sends and receives must name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner<'a> {
    pub(super) task: &'a TaskName,
    pub(super) incarnation: Incarnation,
}

impl Plan {
    /// Makes a plan of a part. Kernels with state that are `kept` are those of other plans too.
    ///
    /// # Errors
    /// What `kernels` says of a node that has none; `GRAPH_FRAME` and `GRAPH_CYCLE` for loops that make no sense;
    /// `GRAPH_ATTR` for a send, a receive, an argument or a result whose attributes make none; `DEVICE_FOREIGN_SOURCE`
    /// and `DEVICE_FOREIGN_DESTINATION` if they are another task's, `PEER_RESTARTED` if they are an earlier life's.
    pub(super) fn new(
        graph: &Graph,
        name: &str,
        owner: Owner<'_>,
        kernels: &KernelSource,
        kept: &KeptKernels,
    ) -> Result<Self, Status> {
        let frames = Frames::of(graph)?;
        let mut maker = Maker {
            graph,
            owner,
            frames: &frames,
            plan: Self {
                name: name.to_owned(),
                nodes: Vec::with_capacity(graph.len()),
                ports: vec![],
                edges: vec![],
                frames: vec![],
                roots: vec![],
                keys: vec![],
                args: 0,
                results: vec![],
                run_bytes: 0,
                id: 0,
                shared: None,
            },
        };
        maker.lay_frames()?;
        for (id, node) in graph.nodes() {
            maker.node(id, node, kernels, kept)?;
        }
        maker.lay_edges();
        let bytes = |frame: &PlanFrame| {
            frame.slots * size_of::<Option<Value>>() + frame.counts.len() * size_of::<Count>()
        };
        maker.plan.run_bytes = maker.plan.frames.iter().map(bytes).sum();
        Ok(maker.plan)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many arguments it takes: one more than the highest number of its `_Arg` nodes.
    #[must_use]
    pub const fn args(&self) -> usize {
        self.args
    }

    /// How many results it gives: one more than the highest number of its `_Retval` nodes.
    #[must_use]
    pub const fn results(&self) -> usize {
        self.results.len()
    }

    /// The readers of that output of a node.
    #[inline]
    pub(super) fn readers(&self, node: &PlanNode, output: u32) -> &[Edge] {
        let at = (node.port + output) as usize;
        &self.edges[self.ports[at] as usize..self.ports[at + 1] as usize]
    }

    /// The nodes that wait for a node.
    #[inline]
    pub(super) fn followers(&self, node: &PlanNode) -> &[Edge] {
        self.readers(node, node.outputs)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.forget(self.id);
        }
    }
}

impl PlanNode {
    /// Calls its kernel. One that breaks down fails its run, and not the thread that has other things to do.
    ///
    /// # Errors
    /// What the kernel says; `KERNEL_FAILED` if it breaks down.
    pub(super) fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        let Some(kernel) = &self.kernel else {
            return Err(Status::of(catalogue::KERNEL_UNKNOWN, self.text()));
        };
        // What a call is left with after that is dropped, unread.
        catch_unwind(AssertUnwindSafe(|| kernel.compute(call))).unwrap_or_else(|_| {
            let message = format!("its kernel broke down; {}", self.text());
            Err(Status::of(catalogue::KERNEL_FAILED, message))
        })
    }

    /// True if a call of its kernel with these inputs takes long. One that breaks down on the question is called
    /// beside the shards.
    pub(super) fn is_costly(&self, inputs: &[Value]) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| {
            catch_unwind(AssertUnwindSafe(|| kernel.is_costly(inputs))).unwrap_or(true)
        })
    }

    /// `{{node x}} = Op`, as the original names it in errors.
    pub(super) fn text(&self) -> String {
        format!("{{{{node {}}}}} = {}", self.name, self.op)
    }
}

struct Maker<'a> {
    graph: &'a Graph,
    owner: Owner<'a>,
    frames: &'a Frames,
    plan: Plan,
}

impl Maker<'_> {
    /// Finds the frames, and how often and from where each is entered.
    fn lay_frames(&mut self) -> Result<(), Status> {
        let count = |id| self.frames.of_node(id) + 1;
        let count = self.graph.nodes().map(|(id, _)| count(id)).max();
        for index in 0..count.unwrap_or(1) {
            let described = self.frames.frame(index);
            self.plan.frames.push(PlanFrame {
                name: frame_hash(&described.name),
                enters: 0,
                parallel: 1,
                counts: vec![],
                slots: 0,
                children: 0,
                child: 0,
            });
            if index != crate::graph::ROOT {
                let parent = &mut self.plan.frames[described.parent];
                let child = parent.children;
                parent.children += 1;
                self.plan.frames[index].child = child;
            }
        }
        for (id, node) in self.graph.nodes() {
            if node.role() != Role::Enter {
                continue;
            }
            let frame = &mut self.plan.frames[self.frames.of_node(id)];
            let parallel = attr::int(&node.attrs, "parallel_iterations").unwrap_or(1);
            let Some(parallel) = usize::try_from(parallel).ok().filter(|&many| many > 0) else {
                let what = format!("attr 'parallel_iterations' must be > 0, and is {parallel}");
                return Err(refuse(catalogue::GRAPH_ATTR, node, &what));
            };
            frame.enters += 1;
            frame.parallel = frame.parallel.max(parallel.min(LOOP_PARALLEL_MAX));
        }
        Ok(())
    }

    fn node(
        &mut self,
        id: NodeId,
        node: &Node,
        kernels: &KernelSource,
        kept: &KeptKernels,
    ) -> Result<(), Status> {
        let kind = self.kind(id, node)?;
        let kernel = match kind {
            NodeKind::Compute => Some(kept.find_or_make(node, kernels)?),
            _ => None,
        };
        let inputs = node.inputs().len() as u32;
        let waits = node.controls().len() as u32;
        let frame_index = self.frames.of_inputs(self.graph, id);
        let frame = &mut self.plan.frames[frame_index];
        let count = Count {
            waits: if kind == NodeKind::Merge {
                waits
            } else {
                inputs + waits
            },
            ..Count::default()
        };
        if inputs + waits == 0 {
            self.plan.roots.push(id.index() as u32);
        }
        let what = match kind {
            NodeKind::Retval(_) | NodeKind::Send(_) => node.in_ports().first(),
            _ => node.out_ports().first(),
        };
        let reads = |port: &crate::graph::signature::Port| {
            !port.what.is_ref() && port.what.base() != DataType::DtResource
        };
        self.plan.nodes.push(PlanNode {
            kind,
            kernel,
            count: frame.counts.len() as u32,
            slot: frame.slots as u32,
            inputs,
            port: 0,
            outputs: node.out_ports().len() as u32,
            reads: node.in_ports().first().is_some_and(reads),
            dtype: what.and_then(|port| types::dtype(port.what.base())),
            name: node.name.as_str().into(),
            op: node.op.name(),
        });
        frame.counts.push(count);
        frame.slots += inputs as usize;
        Ok(())
    }

    fn kind(&mut self, id: NodeId, node: &Node) -> Result<NodeKind, Status> {
        Ok(match node.role() {
            Role::Switch => NodeKind::Switch,
            Role::Merge => NodeKind::Merge,
            Role::Enter => NodeKind::Enter {
                frame: self.frames.of_node(id) as u32,
                is_constant: attr::bool(&node.attrs, "is_constant").unwrap_or(false),
            },
            Role::Exit => NodeKind::Exit,
            Role::NextIteration => NodeKind::NextIteration,
            Role::LoopCond => NodeKind::Forward,
            Role::ControlTrigger => NodeKind::Trigger,
            Role::Send => {
                if types::dtype(node.in_ports()[0].what.base()).is_none() {
                    let what = format!("{} cannot be sent", node.in_ports()[0].what);
                    return Err(refuse(catalogue::KERNEL_UNKNOWN, node, &what));
                }
                NodeKind::Send(self.key(node)?)
            }
            Role::Recv => NodeKind::Recv(self.key(node)?),
            Role::Arg => {
                let index = index(node)?;
                self.plan.args = self.plan.args.max(index + 1);
                NodeKind::Arg(index as u32)
            }
            Role::Retval => {
                let index = index(node)?;
                if self.plan.results.len() <= index {
                    self.plan.results.resize(index + 1, None);
                }
                if self.plan.results[index]
                    .replace(id.index() as u32)
                    .is_some()
                {
                    let what = format!("another node gives result {index} already");
                    return Err(refuse(catalogue::GRAPH_ATTR, node, &what));
                }
                NodeKind::Retval(index as u32)
            }
            Role::Idle => NodeKind::Nothing,
            Role::Plain | Role::Placeholder | Role::Variable => NodeKind::Compute,
        })
    }

    /// The key of a send or a receive.
    fn key(&mut self, node: &Node) -> Result<u32, Status> {
        let text = |name: &str| {
            attr::text(&node.attrs, name).ok_or_else(|| {
                let what = format!("attr '{name}' is no text");
                refuse(catalogue::GRAPH_ATTR, node, &what)
            })
        };
        let device = |name: &str| {
            let text = text(name)?;
            DeviceName::parse_full(text).map_err(|error| {
                let what = format!("attr '{name}' is no device: {error}");
                refuse(catalogue::GRAPH_ATTR, node, &what)
            })
        };
        let incarnation = attr::int(&node.attrs, "send_device_incarnation").unwrap_or(0);
        let incarnation = Incarnation(incarnation.cast_unsigned());
        let (source, target) = (device("send_device")?, device("recv_device")?);
        let edge = text("tensor_name")?;
        let key = Key::new(&source, incarnation, &target, edge, FrameIter::default());
        let key = key.map_err(|error| {
            let what = format!("attr 'tensor_name' makes no key: {error}");
            refuse(catalogue::GRAPH_ATTR, node, &what)
        })?;
        let is_source = key.source_task() == self.owner.task;
        if node.role() == Role::Send && !is_source {
            return Err(faults::foreign_source(&key, self.owner.task));
        }
        if node.role() == Role::Recv && key.destination_task() != self.owner.task {
            return Err(faults::foreign_destination(&key, self.owner.task));
        }
        if is_source && !incarnation.is_current() && incarnation != self.owner.incarnation {
            return Err(faults::own_incarnation(incarnation, self.owner.incarnation));
        }
        self.plan.keys.push(key);
        Ok(self.plan.keys.len() as u32 - 1)
    }

    /// Sorts the edges by the output they come from.
    fn lay_edges(&mut self) {
        let plan = &mut self.plan;
        let mut next = 0u32;
        for node in &mut plan.nodes {
            node.port = next;
            next += node.outputs + 1;
        }
        let mut starts = vec![0u32; next as usize + 1];
        let place = |plan: &Plan, from: NodeId, output: Option<u32>| {
            let from = &plan.nodes[from.index()];
            (from.port + output.unwrap_or(from.outputs)) as usize
        };
        for (_, node) in self.graph.nodes() {
            for input in node.inputs() {
                starts[place(plan, input.node, Some(input.port)) + 1] += 1;
            }
            for &control in node.controls() {
                starts[place(plan, control, None) + 1] += 1;
            }
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let none = Edge { to: 0, slot: 0 };
        let mut edges = vec![none; starts.last().copied().unwrap_or(0) as usize];
        for (id, node) in self.graph.nodes() {
            let (to, first) = (id.index() as u32, plan.nodes[id.index()].slot);
            let mut put = |at: usize, slot: u32| {
                edges[next[at] as usize] = Edge { to, slot };
                next[at] += 1;
            };
            for (input, slot) in node.inputs().iter().zip(first..) {
                put(place(plan, input.node, Some(input.port)), slot);
            }
            for &control in node.controls() {
                put(place(plan, control, None), 0);
            }
        }
        (plan.ports, plan.edges) = (starts, edges);
    }
}

/// What a frame is called in keys: `parent` is what the frame is called that it is entered from, in iteration `iter`.
/// All parts of a graph must agree on it.
pub(super) const fn frame_id(parent: u64, iter: u64, name: u64) -> u64 {
    let id = mix(mix(parent ^ name).wrapping_add(iter));
    // Zero is the root.
    if id == 0 { 1 } else { id }
}

/// A hash of a frame's name: FNV-1a, and the finaliser of `SplitMix64`.
pub(super) fn frame_hash(name: &str) -> u64 {
    mix(fnv1a(name.as_bytes()))
}

/// The number of an argument or a result.
fn index(node: &Node) -> Result<usize, Status> {
    let index = attr::int(&node.attrs, "index").unwrap_or(-1);
    let known = usize::try_from(index).ok();
    known
        .filter(|&index| index < RUN_VALUES_MAX)
        .ok_or_else(|| {
            let what = format!("attr 'index' is {index}, and must be below {RUN_VALUES_MAX}");
            refuse(catalogue::GRAPH_ATTR, node, &what)
        })
}

fn refuse(reason: &'static str, node: &Node, what: &str) -> Status {
    let (name, op) = (&node.name, node.op.name());
    Status::of(reason, format!("{what}; {{{{node {name}}}}} = {op}"))
}
