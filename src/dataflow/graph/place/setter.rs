//! The device setter: variables on parameter servers, all else on the worker: between-graph replication.
//!
//! Knows operations by name. The rules are those of TensorFlow's `replica_device_setter` and its two strategies.

use crate::graph::attr;
use crate::graph::flow::{Graph, Node};
use crate::graph::shape::PartialShape;
use crate::graph::{Role, errors, types};
use rendez::ground::{DeviceName, Status, catalogue};

/// Which parameter server the next variable stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Strategy {
    /// One after the other.
    RoundRobin,
    /// The one that has the fewest bytes, the first of several.
    Bytes,
}

/// Asks that variables stand on parameter servers, and all else on a worker.
///
/// ```
/// use rendez_dataflow::graph::{Builder, DeviceSetter, Strategy};
/// use rendez_dataflow::operations::Operations;
/// use rendez_proto::tensorflow::{DataType, TensorShapeProto};
///
/// let mut graph = Builder::new(Operations::standard().ops());
/// for name in ["v", "w"] {
///     let variable = graph.node("VariableV2").name(name).attr("dtype", DataType::DtFloat);
///     variable.attr("shape", TensorShapeProto::default()).build()?;
/// }
/// let mut graph = graph.finish()?;
/// DeviceSetter::new("ps", 2, "/job:worker/task:3", Strategy::RoundRobin)?.apply(&mut graph)?;
/// assert_eq!(graph.find("w").map(|id| graph.node(id).device.as_str()), Some("/job:ps/task:1"));
/// # Ok::<(), rendez::ground::Status>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceSetter {
    servers: Vec<DeviceName>,
    worker: DeviceName,
    strategy: Strategy,
    next: usize,
    loads: Vec<u64>,
}

impl DeviceSetter {
    /// One for `tasks` servers of job `job` and the worker of that full or partial name.
    ///
    /// # Errors
    /// `DEVICE_MALFORMED` for names that are none.
    pub fn new(job: &str, tasks: u32, worker: &str, strategy: Strategy) -> Result<Self, Status> {
        let server = |task| DeviceName::parse(&format!("/job:{job}/task:{task}"));
        Ok(Self {
            servers: (0..tasks).map(server).collect::<Result<_, _>>()?,
            worker: DeviceName::parse(worker)?,
            strategy,
            next: 0,
            loads: vec![0; tasks as usize],
        })
    }

    /// Asks it of every node of `graph`. What a node asks for itself it keeps; one that stands with another by its
    /// `_class` is left alone. Without servers, variables stand on the worker.
    ///
    /// # Errors
    /// `GRAPH_SHAPE` for a variable whose bytes are not known and count; `DEVICE_MALFORMED` for a node's device.
    pub fn apply(&mut self, graph: &mut Graph) -> Result<(), Status> {
        for id in graph.ids() {
            let node = graph.node(id);
            if attr::list(&node.attrs, "_class").is_some() {
                continue;
            }
            let mut asked = match node.device.as_str() {
                "" => DeviceName::default(),
                text => DeviceName::parse(text)?,
            };
            let is_variable = node.role() == Role::Variable;
            if is_variable && asked.job().is_none() && !self.servers.is_empty() {
                let server = self.choose(node)?;
                asked.fill(&self.servers[server]);
            } else if asked.job().is_none() || asked.job() == self.worker.job() {
                asked.fill(&self.worker);
            }
            graph.node_mut(id).device = asked.to_string();
        }
        Ok(())
    }

    /// Bytes of variables on each server.
    #[must_use]
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }

    fn choose(&mut self, node: &Node) -> Result<usize, Status> {
        let bytes = bytes(node);
        let at = match self.strategy {
            Strategy::RoundRobin => self.next % self.servers.len(),
            Strategy::Bytes => {
                if bytes.is_none() {
                    let what = "its bytes are not known, and the servers are balanced by them";
                    return Err(errors::at_node(
                        catalogue::GRAPH_SHAPE,
                        &node.name,
                        node.op.name(),
                        what,
                    ));
                }
                let loads = self.loads.iter().enumerate();
                loads.min_by_key(|&(_, &load)| load).map_or(0, |(at, _)| at)
            }
        };
        self.next += 1;
        self.loads[at] = self.loads[at].saturating_add(bytes.unwrap_or(0));
        Ok(at)
    }
}

/// Bytes of a variable.
fn bytes(node: &Node) -> Option<u64> {
    let shape = PartialShape::from_proto(attr::shape(&node.attrs, "shape")?)?;
    let size = types::dtype(attr::data_type(&node.attrs, "dtype")?)?.size()?;
    shape.elements()?.checked_mul(size as u64)
}
