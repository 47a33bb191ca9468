//! Frames: in which loop each node runs.
//!
//! Knows Enter, Exit and NextIteration, and no devices. A frame is entered by all Enter nodes of its name, and left by
//! Exit; all inputs of a node are in one frame. The rules are those of the dataflow model's tagged tokens, as in
//! "Dynamic control flow in large-scale machine learning" (Yu et al., 2018), and of TensorFlow's `control_flow.cc`.

use std::collections::BTreeMap;

use super::attr;
use super::flow::{Graph, Node, NodeId};
use super::ops::Role;
use rendez::ground::{Status, catalogue};

#[cfg(test)]
mod tests;

/// A frame's number. The root is 0.
pub type FrameIndex = usize;

/// What is outside all loops.
pub const ROOT: FrameIndex = 0;

/// A loop, or what is outside all loops.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Its name; empty for the root.
    pub name: String,
    /// The frame it is entered from; the root's is itself.
    pub parent: FrameIndex,
    /// One of the nodes that enter it.
    pub enter: Option<NodeId>,
    /// The node that says whether it goes on.
    pub loop_cond: Option<NodeId>,
}

/// The frames of a graph.
#[derive(Clone, Debug)]
pub struct Frames {
    frames: Vec<Frame>,
    of_node: Vec<FrameIndex>,
}

impl Frames {
    /// Finds the frame of every node.
    ///
    /// # Errors
    /// `GRAPH_FRAME` if a node reads from different frames, a frame is entered from different ones or has two
    /// conditions, or an Enter has no frame's name; `GRAPH_CYCLE` as for an order.
    pub fn of(graph: &Graph) -> Result<Self, Status> {
        let mut frames = Self {
            frames: vec![Frame::default()],
            of_node: vec![ROOT; graph.len()],
        };
        let mut names = BTreeMap::new();
        let order = graph.order()?;
        for &id in &order {
            let inputs = frames.input_frame(graph, id)?;
            frames.of_node[id.index()] = match graph.node(id).role() {
                Role::Enter => frames.enter(graph, id, inputs, &mut names)?,
                _ => inputs,
            };
            frames.check_role(graph, id)?;
        }
        for id in order {
            frames.check_back_edges(graph, id)?;
        }
        Ok(frames)
    }

    /// The frame a node runs in; an Enter runs in the one it enters.
    #[must_use]
    pub fn of_node(&self, node: NodeId) -> FrameIndex {
        self.of_node[node.index()]
    }

    /// The frame that a node's inputs are in.
    #[must_use]
    pub fn of_inputs(&self, graph: &Graph, node: NodeId) -> FrameIndex {
        let own = self.of_node(node);
        match graph.node(node).role() {
            Role::Enter => self.frames[own].parent,
            _ => own,
        }
    }

    /// The frame that a node's outputs are in.
    #[must_use]
    pub fn of_outputs(&self, graph: &Graph, node: NodeId) -> FrameIndex {
        let own = self.of_node(node);
        match graph.node(node).role() {
            Role::Exit => self.frames[own].parent,
            _ => own,
        }
    }

    /// The frame.
    #[must_use]
    pub fn frame(&self, index: FrameIndex) -> &Frame {
        &self.frames[index]
    }

    /// True if there is no loop.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.frames.len() == 1
    }

    /// Says that `node`, which was added since, runs in `frame`.
    pub(super) fn push(&mut self, node: NodeId, frame: FrameIndex) {
        if self.of_node.len() <= node.index() {
            self.of_node.resize(node.index() + 1, ROOT);
        }
        self.of_node[node.index()] = frame;
    }

    /// The one frame that all of a node's inputs are in, except those that begin the next iteration.
    fn input_frame(&self, graph: &Graph, id: NodeId) -> Result<FrameIndex, Status> {
        let node = graph.node(id);
        let data = node.inputs().iter().map(|input| input.node);
        let data = data.filter(|&from| !graph.is_back_edge(from, id));
        let mut first: Option<(NodeId, FrameIndex)> = None;
        for from in data.chain(node.controls().iter().copied()) {
            let frame = self.of_outputs(graph, from);
            match first {
                None => first = Some((from, frame)),
                Some((other, known)) if known != frame => {
                    return Err(refuse(format!(
                        "{{{{node {}}}}} has inputs from different frames. The input {{{{node {}}}}} is in frame \
                         '{}'. The input {{{{node {}}}}} is in frame '{}'.",
                        node.name,
                        graph.node(from).name,
                        self.frames[frame].name,
                        graph.node(other).name,
                        self.frames[known].name
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(first.map_or(ROOT, |(_, frame)| frame))
    }

    fn enter(
        &mut self,
        graph: &Graph,
        id: NodeId,
        parent: FrameIndex,
        names: &mut BTreeMap<String, FrameIndex>,
    ) -> Result<FrameIndex, Status> {
        let node = graph.node(id);
        let name = attr::text(&node.attrs, "frame_name").unwrap_or_default();
        if name.is_empty() {
            return Err(refuse(format!(
                "The Enter {{{{node {}}}}} must have a frame name.",
                node.name
            )));
        }
        if let Some(&known) = names.get(name) {
            let entered_from = self.frames[known].parent;
            if entered_from != parent {
                return Err(refuse(format!(
                    "Invalid loop structure: Mismatched parent frames for \"{name}\": \"{}\" vs \"{}\". The node \
                     giving this error: {{{{node {}}}}}",
                    self.frames[parent].name, self.frames[entered_from].name, node.name
                )));
            }
            return Ok(known);
        }
        self.frames.push(Frame {
            name: name.to_owned(),
            parent,
            enter: Some(id),
            loop_cond: None,
        });
        names.insert(name.to_owned(), self.frames.len() - 1);
        Ok(self.frames.len() - 1)
    }

    fn check_role(&mut self, graph: &Graph, id: NodeId) -> Result<(), Status> {
        let node = graph.node(id);
        let index = self.of_node(id);
        match node.role() {
            Role::Exit | Role::NextIteration if index == ROOT => Err(refuse(format!(
                "{{{{node {}}}}} = {} stands outside all loops",
                node.name,
                node.op.name()
            ))),
            Role::LoopCond if index != ROOT => {
                let counter = |id: NodeId| graph.node(id).name.contains("LoopCounter");
                match self.frames[index].loop_cond.replace(id) {
                    // The counters of a loop and of its gradient share its frame.
                    Some(other) if !counter(id) && !counter(other) => Err(refuse(format!(
                        "Invalid loop structure: Loop \"{}\" has more than one LoopCond node: {{{{node {}}}}} and \
                         {{{{node {}}}}}.",
                        self.frames[index].name,
                        node.name,
                        graph.node(other).name
                    ))),
                    _ => Ok(()),
                }
            }
            _ if index != ROOT && is_given_out(node) => {
                let fetched = node
                    .inputs()
                    .first()
                    .map(|input| &graph.node(input.node).name);
                Err(refuse(format!(
                    "{{{{node {}}}}} is in loop \"{}\", and has a value for each iteration: fetch what an Exit of it \
                     gives.",
                    fetched.unwrap_or(&node.name),
                    self.frames[index].name
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_back_edges(&self, graph: &Graph, id: NodeId) -> Result<(), Status> {
        let node = graph.node(id);
        for input in node.inputs() {
            if graph.is_back_edge(input.node, id) && self.of_node(input.node) != self.of_node(id) {
                return Err(refuse(format!(
                    "{{{{node {}}}}} has inputs from different frames. The input {{{{node {}}}}} is in frame '{}', \
                     and the node in '{}'.",
                    node.name,
                    graph.node(input.node).name,
                    self.frames[self.of_node(input.node)].name,
                    self.frames[self.of_node(id)].name
                )));
            }
        }
        Ok(())
    }
}

/// True if the client of a step takes what the node is given: one value.
fn is_given_out(node: &Node) -> bool {
    let is_of_client = || attr::bool(&node.attrs, "client_terminated") == Some(true);
    match node.op.name() {
        "_Retval" => true,
        "_Send" => is_of_client(),
        _ => false,
    }
}

fn refuse(message: String) -> Status {
    Status::of(catalogue::GRAPH_FRAME, message)
}
