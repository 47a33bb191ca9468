//! Partial runs whose parts end before they were begun.

use std::time::Duration;

use super::*;
use crate::graph::Builder;
use crate::kernel::{Home, Value};
use crate::operations::Operations;
use crate::server::errands::Errands;
use crate::server::master::Master;
use crate::server::runner::{Done, Part, Runner, Running};
use crate::server::worker::Worker;
use rendez::cluster::ClusterSpec;
use rendez::engine::Config;
use rendez_proto::tensorflow::{ConfigProto, DataType};

/// Runs nothing: each part fails at once.
#[derive(Debug)]
struct Hasty;

impl Runner for Hasty {
    fn prepare(&self, _: &Graph, _: &str) -> Result<Arc<dyn Part>, Status> {
        Ok(Arc::new(Self))
    }
}

impl Part for Hasty {
    fn run(&self, _: StepId, _: Vec<Value>, done: Done) -> Box<dyn Running> {
        done(Err(Status::of(catalogue::FEED_UNFIT, "at once")));
        Box::new(Self)
    }
}

impl Running for Hasty {
    fn cancel(&self, _: Status) {}
}

#[test]
fn a_run_that_fails_while_it_is_begun_leaves_nothing_at_its_workers() {
    let mut config = Config::new("/job:w/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    config.arena.segment_bytes = 1 << 20;
    let engine = Engine::start(config).unwrap();
    let (errands, operations) = (Arc::new(Errands::default()), Operations::standard());
    let ops = operations.shared_ops();
    let worker = Worker::new(
        &engine,
        Arc::clone(&errands),
        Arc::clone(&ops),
        Box::new(|| Home::new(|_| Err(Status::of(catalogue::ARENA_FULL, "no room")))),
        Box::new(|_| Ok(Arc::new(Hasty))),
    );
    let worker = worker.unwrap();
    let mut graph = Builder::new(operations.ops());
    let x = graph.node("Placeholder").name("x");
    let x = x.attr("dtype", DataType::DtFloat).build().unwrap();
    graph.node("Neg").inputs([x]).name("y").build().unwrap();
    let graph = graph.finish().unwrap().to_def();

    let cluster = ClusterSpec::new();
    let master = Master::new(&engine, &worker, &errands, ops, cluster, Duration::ZERO).unwrap();
    let (session, _) = master
        .create_session(graph, ConfigProto::default())
        .unwrap();
    let signature = StepSignature {
        feeds: vec!["x".into()],
        fetches: vec!["y".into()],
        ..StepSignature::default()
    };
    let runs = &session.partial_runs;
    let handle = runs.set_up(&session, signature, StepId(7)).unwrap();
    assert_eq!(worker.load(), (1, 0));
    let ended = runs.run(&session, &engine, &handle, vec![], &[], None);
    assert_eq!(ended.unwrap_err().message(), "at once");
    assert_eq!(worker.load(), (1, 0));
    master.end();
    worker.end();
    engine.shutdown(Duration::ZERO);
}
