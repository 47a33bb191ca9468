//! What tests of graphs need: nodes that are known to be right.

use super::{Builder, Output};

impl Builder {
    /// A node that has its operation's name.
    #[track_caller]
    pub(crate) fn put(&mut self, op: &str, inputs: &[Output]) -> Output {
        self.named(op, op, inputs)
    }

    #[track_caller]
    pub(crate) fn named(&mut self, op: &str, name: &str, inputs: &[Output]) -> Output {
        let node = self.node(op).name(name).inputs(inputs.iter().copied());
        node.build().expect(name)
    }
}
