//! Kept kernels: those of stateful nodes, made once for a session, whatever graphs their nodes are in.
//!
//! Knows nodes by name. A session's graph only grows, so a name stays one node; the parts of it that are registered for
//! one kind of step after the other have that node in common, and what its kernel has come to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Kernel;
use crate::graph::Node;
use crate::graph::attr::Attrs;
use rendez::ground::limits::GRAPH_NODES_MAX;
use rendez::ground::{Locked, Status, catalogue};

/// The kernels of a session's stateful nodes, by name.
#[derive(Debug, Default)]
pub(crate) struct KeptKernels(Mutex<BTreeMap<String, Kept>>);

#[derive(Debug)]
struct Kept {
    op: &'static str,
    attrs: Arc<Attrs>,
    kernel: Arc<dyn Kernel>,
}

impl KeptKernels {
    /// The kernel of a node, made by `make` if it has no state or there is none yet.
    ///
    /// # Errors
    /// What `make` says; `SESSION_LIMIT`.
    pub(crate) fn find_or_make(
        &self,
        node: &Node,
        make: impl FnOnce(&Node) -> Result<Box<dyn Kernel>, Status>,
    ) -> Result<Arc<dyn Kernel>, Status> {
        if !node.op.is_stateful || mutant!("kernels_made_for_each_plan") {
            return make(node).map(Arc::from);
        }
        if let Some(kernel) = find(&self.kept(), node) {
            return Ok(kernel);
        }
        // Not while others wait: this may be the application's code.
        let made: Arc<dyn Kernel> = make(node)?.into();
        let mut kept = self.kept();
        if let Some(kernel) = find(&kept, node) {
            return Ok(kernel);
        }
        if kept.len() >= GRAPH_NODES_MAX {
            let message = format!(
                "a session has {GRAPH_NODES_MAX} kernels with state here, the limit GRAPH_NODES_MAX"
            );
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        let (op, attrs) = (node.op.name(), node.attrs.clone());
        let kernel = Arc::clone(&made);
        let former = kept.insert(node.name.clone(), Kept { op, attrs, kernel });
        drop(kept);
        drop(former);
        Ok(made)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.kept());
        drop(all);
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.0.locked()
    }
}

/// What is kept for a node; not what is kept for another one that had its name.
fn find(kept: &BTreeMap<String, Kept>, node: &Node) -> Option<Arc<dyn Kernel>> {
    let kept = kept.get(&node.name)?;
    let is_same = kept.op == node.op.name() && kept.attrs == node.attrs;
    is_same.then(|| Arc::clone(&kept.kernel))
}
