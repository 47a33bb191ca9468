//! The network: what stands where, and that every graph has the same variables.

use super::*;

const JOBS: Jobs = Jobs {
    servers: 2,
    workers: 3,
};

/// Where the nodes of an operation were asked to stand; the last of what they stand with, if that was asked.
fn devices(graph: &Graph, op: &str) -> Vec<(String, String)> {
    let of =
        |(_, node): (_, &rendez_dataflow::graph::Node)| (node.name.clone(), node.device.clone());
    let nodes = graph.nodes().filter(|(_, node)| node.op.name() == op);
    nodes.map(of).collect()
}

#[test]
fn every_graph_has_the_same_variables_at_the_same_places() {
    let graphs = [
        replica(JOBS, 0).expect("a replica"),
        replica(JOBS, 2).expect("a replica"),
        towers(JOBS).expect("towers"),
        test(JOBS).expect("a test"),
    ];
    let first = devices(&graphs[0], "VarHandleOp");
    for graph in &graphs {
        assert_eq!(devices(graph, "VarHandleOp"), first);
    }
    let kept = variables().len();
    assert_eq!(first.len(), kept + JOBS.workers as usize);
    let names: Vec<_> = variables().into_iter().map(|(name, ..)| name).collect();
    assert!(
        names
            .iter()
            .all(|name| first.iter().any(|(known, _)| known == name)),
        "{first:?}"
    );
    // The largest stands on one server, and what follows on the other until that has as many bytes.
    let of = |name: &str| {
        first
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, device)| device.as_str())
    };
    assert_eq!(of("hidden/weights"), Some("/job:ps/task:0"));
    assert_eq!(of("output/weights"), Some("/job:ps/task:1"));
}

#[test]
fn work_stands_on_workers_and_updates_with_their_variables() {
    let graph = replica(JOBS, 1).expect("a replica");
    let products = devices(&graph, "MatMul");
    // Two forward, and each of them back to both of its factors; that to the pixels is cut off before it runs.
    assert_eq!(products.len(), 6, "{products:?}");
    assert!(
        products
            .iter()
            .all(|(_, device)| device == "/job:worker/task:1"),
        "{products:?}"
    );
    let updates: Vec<_> = graph
        .nodes()
        .filter(|(_, node)| node.op.name() == "ResourceApplyAdam")
        .collect();
    assert_eq!(updates.len(), LAYERS.len());
    for (_, update) in updates {
        let layer = update.name.trim_end_matches("/update");
        let beside = rendez_dataflow::graph::attr::list(&update.attrs, "_class")
            .expect("stands with its variable");
        assert_eq!(beside.s, [format!("loc:@{layer}").into_bytes()]);
    }
    let towers = towers(JOBS).expect("towers");
    for task in 0..JOBS.workers {
        let on = devices(&towers, "MatMul")
            .into_iter()
            .filter(|(_, device)| *device == worker(task));
        assert_eq!(on.count(), 6);
    }
    assert!(towers.find(TRAIN).is_some() && towers.find(ASSIGN).is_some());
}

#[test]
fn the_first_weights_are_those_of_their_seed() {
    let (one, again, other) = (
        initial(1).expect("values"),
        initial(1).expect("values"),
        initial(2).expect("values"),
    );
    let bytes = |all: &[(String, Tensor)]| {
        all.iter()
            .flat_map(|(_, tensor)| tensor.host().unwrap().to_vec())
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(&one), bytes(&again));
    assert_ne!(bytes(&one), bytes(&other));
    assert_eq!(variables().len(), one.len());
    for ((name, dtype, dims), (named, tensor)) in variables().iter().zip(&one) {
        assert_eq!((name, *dtype), (named, tensor.dtype()));
        assert_eq!(tensor.shape().dims().collect::<Vec<_>>(), *dims);
    }
    let weights = one[0].1.as_slice::<f32>().expect("weights");
    let square = weights.iter().map(|weight| weight * weight).sum::<f32>() / weights.len() as f32;
    assert!((square * PIXELS as f32 / 2.0 - 1.0).abs() < 0.1, "{square}");
    assert!(
        one[1]
            .1
            .as_slice::<f32>()
            .expect("a mean")
            .iter()
            .all(|mean| *mean == 0.0)
    );
}
