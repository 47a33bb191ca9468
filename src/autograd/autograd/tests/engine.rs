//! A local engine whose values are integers and whose only function is a weighted sum: gradients are exact.

use std::collections::{BTreeMap, BTreeSet};

use crate::autograd::{ContextId, Input, MessageId, PassId, Port, Ran, Start};
use rendez::ground::{Status, catalogue};

/// A value here: an output of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Local {
    pub(super) node: usize,
    pub(super) slot: u16,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(u64),
    Sum(Vec<(Local, i64)>),
    Received(MessageId, u16),
}

#[derive(Clone, Debug, Default)]
struct Task {
    roots: Vec<Local>,
    /// Inputs of send functions that take part.
    starts: BTreeSet<Port>,
    marked: BTreeSet<usize>,
    ports: BTreeSet<(usize, u16)>,
    waits: BTreeMap<usize, usize>,
    sums: BTreeMap<usize, BTreeMap<u16, i64>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    nodes: Vec<Node>,
    used_up: BTreeSet<usize>,
    sends: BTreeMap<(ContextId, MessageId), Vec<Option<Local>>>,
    tasks: BTreeMap<PassId, Task>,
}

impl Engine {
    pub(super) fn leaf(&mut self, id: u64) -> Local {
        self.add(Node::Leaf(id))
    }

    pub(super) fn sum(&mut self, terms: Vec<(Local, i64)>) -> Local {
        self.add(Node::Sum(terms))
    }

    pub(super) fn received(&mut self, message: MessageId, len: u16) -> usize {
        self.add(Node::Received(message, len)).node
    }

    fn add(&mut self, node: Node) -> Local {
        self.nodes.push(node);
        Local {
            node: self.nodes.len() - 1,
            slot: 0,
        }
    }

    pub(super) fn send(
        &mut self,
        context: ContextId,
        message: MessageId,
        values: Vec<Option<Local>>,
    ) {
        self.sends.insert((context, message), values);
    }

    pub(super) fn begin(&mut self, pass: PassId, roots: Vec<Local>) {
        self.tasks.insert(
            pass,
            Task {
                roots,
                ..Task::default()
            },
        );
    }

    pub(super) fn mark(&mut self, pass: PassId, starts: &[Start]) -> Result<Vec<Port>, Status> {
        let task = self.tasks.entry(pass).or_default();
        let mut found = vec![];
        let mut todo = vec![];
        for start in starts {
            todo.push(match start {
                Start::Root(index) => task.roots[*index as usize],
                Start::Send(port) => {
                    if !task.starts.insert(*port) {
                        continue;
                    }
                    let values = &self.sends[&(pass.context, port.message)];
                    values[usize::from(port.index)].expect("it wants gradients")
                }
            });
        }
        while let Some(Local { node, slot }) = todo.pop() {
            *task.waits.entry(node).or_default() += 1;
            if let Node::Received(message, _) = self.nodes[node]
                && task.ports.insert((node, slot))
            {
                found.push(Port {
                    message,
                    index: slot,
                });
            }
            if !task.marked.insert(node) {
                continue;
            }
            if self.used_up.contains(&node) {
                return Err(Status::of(catalogue::AUTOGRAD_GRAPH_FREED, "used up"));
            }
            if let Node::Sum(terms) = &self.nodes[node] {
                todo.extend(terms.iter().map(|(term, _)| *term));
            }
        }
        Ok(found)
    }

    pub(super) fn run(
        &mut self,
        pass: PassId,
        inputs: Vec<Input<i64>>,
    ) -> Result<Ran<i64>, Status> {
        let task = self.tasks.get_mut(&pass).expect("it was marked");
        let mut arriving: Vec<(Local, Option<i64>)> = vec![];
        for input in inputs {
            match input {
                Input::Root(index) => arriving.push((task.roots[index as usize], Some(1))),
                Input::Send { message, gradients } => {
                    let values = &self.sends[&(pass.context, message)];
                    let wanted = (0u16..).zip(values.iter().zip(gradients));
                    arriving.extend(wanted.filter_map(|(index, (value, gradient))| {
                        let takes_part = task.starts.contains(&Port { message, index });
                        assert!(
                            takes_part || gradient.is_none(),
                            "a gradient for what takes no part"
                        );
                        value.filter(|_| takes_part).map(|value| (value, gradient))
                    }));
                }
            }
        }
        let mut ran = Ran::default();
        while let Some((Local { node, slot }, gradient)) = arriving.pop() {
            let waits = task.waits.get_mut(&node).expect("it takes part");
            *waits -= 1;
            let sums = task.sums.entry(node).or_default();
            if let Some(gradient) = gradient {
                let sum = sums.entry(slot).or_default();
                *sum = sum.wrapping_add(gradient);
            }
            if *waits > 0 {
                continue;
            }
            let all = sums.get(&0).copied();
            match &self.nodes[node] {
                Node::Leaf(id) => ran.leaves.extend(all.map(|sum| (*id, sum))),
                Node::Sum(terms) => {
                    let each = terms
                        .iter()
                        .map(|(term, weight)| (*term, all.map(|sum| sum.wrapping_mul(*weight))));
                    arriving.extend(each);
                }
                Node::Received(message, len) => {
                    let each = (0..*len).map(|slot| sums.get(&slot).copied()).collect();
                    ran.received.push((*message, each));
                }
            }
        }
        Ok(ran)
    }

    pub(super) fn finish(&mut self, pass: PassId, retain: bool) {
        let task = self.tasks.remove(&pass).expect("it ran");
        assert!(
            task.waits.values().all(|&waits| waits == 0),
            "complete with functions that wait"
        );
        if !retain {
            let is_function = |node: &usize| !matches!(self.nodes[*node], Node::Leaf(_));
            self.used_up
                .extend(task.marked.into_iter().filter(is_function));
        }
    }

    pub(super) fn discard(&mut self, pass: PassId) {
        self.tasks.remove(&pass);
    }

    pub(super) fn forget(&mut self, context: ContextId) {
        self.sends.retain(|(of, _), _| *of != context);
        self.tasks.retain(|pass, _| pass.context != context);
    }

    /// Send functions and passes that are kept.
    pub(super) fn left(&self) -> (usize, usize) {
        (self.sends.len(), self.tasks.len())
    }
}
