//! What it takes to take in a graph: to read and place it, to cut it over two tasks, and to have both register their
//! parts, as a master and its workers do it; of 10 000 nodes and of ten times as many. Knows the public face alone.
//!
//! `cargo bench --bench graphs`
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use rendez::engine::{Config, Engine};
use rendez::ground::rng::Rng;
use rendez::ground::{Status, TaskName, catalogue};
use rendez_dataflow::graph::{
    Builder, Convention, Devices, Endpoints, Graph, Import, Output, Placing, decode, floats,
    partition, place, prune,
};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::executor::{self, Executor};
use rendez_proto::tensorflow::{DataType, GraphDef};

const DEVICES: [&str; 2] = [
    "/job:a/replica:0/task:0/device:CPU:0",
    "/job:b/replica:0/task:0/device:CPU:0",
];
const SIZES: [usize; 2] = [10_000, 100_000];
/// Of so many runs the median counts.
const RUNS: usize = 5;
/// Nodes read what was made so far back, at most, as layers of a network do.
const REACH: u64 = 100;
/// So many nodes in a row stand on one task, on average.
const STRETCH: u64 = 10;

/// A task: its engine, and what runs parts there.
struct Site {
    engine: Engine,
    executor: Executor,
}

fn site(task: &str) -> Result<Site, Status> {
    let mut config = Config::new(task);
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let engine = Engine::start(config)?;
    let home = executor::home(engine.downgrade());
    let executor = Executor::new(&engine, Arc::new(home))?;
    Ok(Site { engine, executor })
}

/// A graph of so many nodes: sums of what was made a little earlier, in stretches on one task or the other, with a
/// control edge now and then. Every node is needed by the last.
fn graph(nodes: usize) -> Result<GraphDef, Status> {
    let mut rng = Rng::new(nodes as u64);
    let mut graph = Builder::new(Operations::standard().ops());
    let first = graph.node("Placeholder").name("x");
    let mut made = vec![first.attr("dtype", DataType::DtFloat).build()?];
    let mut device = 0;
    while made.len() + 1 < nodes {
        if rng.one_in(STRETCH) {
            device = 1 - device;
        }
        graph.on(DEVICES[device]);
        let back = rng.below(REACH.min(made.len() as u64)) as usize;
        let (last, other): (Output, Output) = (made[made.len() - 1], made[made.len() - 1 - back]);
        let node = match rng.below(4) {
            0 => {
                let value = floats(&[], &[rng.below(100) as f32]);
                let leaf = graph.node("Const").attr("dtype", DataType::DtFloat);
                let leaf = leaf.attr("value", value).control(other.node).build()?;
                made.push(leaf);
                graph.node("AddV2").inputs([last, leaf])
            }
            1 => graph.node("Mul").inputs([last, other]).control(other.node),
            _ => graph.node("AddV2").inputs([last, other]),
        };
        made.push(node.build()?);
    }
    let last = made[made.len() - 1];
    graph.node("Identity").name("end").input(last).build()?;
    Ok(graph.finish()?.to_def())
}

/// What the stages of one graph took.
struct Took {
    created: Duration,
    cut: Duration,
    registered: Duration,
    parts: usize,
    bytes: usize,
}

fn take_in(sites: &[Site; 2], def: &GraphDef) -> Result<Took, Status> {
    let ops = Operations::standard().ops().clone();
    let lives = sites.iter().map(|site| site.engine.incarnation());
    let devices = Devices::new(DEVICES.into_iter().zip(lives))?;
    let missing = || Status::of(catalogue::GRAPH_DEVICE, "a device is missing");
    let task = TaskName::parse("/job:a/task:0")?;
    let own = devices.find(&rendez::ground::DeviceName::cpu(&task));
    let own = own.ok_or_else(missing)?;

    let began = Instant::now();
    let mut whole = Graph::from_def(def.clone(), &ops, Import::Client)?;
    let placing = Placing {
        soft: false,
        kinds: &["CPU"],
        default: own,
    };
    place(&mut whole, &devices, &placing)?;
    let created = began.elapsed();

    let began = Instant::now();
    let endpoints = Endpoints {
        feeds: vec!["x:0".into()],
        fetches: vec!["end:0".into()],
        targets: vec![],
    };
    let device = devices.device(own).ok_or_else(missing)?;
    let pruned = prune(
        &whole,
        &ops,
        &endpoints,
        (own, device),
        Convention::Arguments,
    )?;
    let parts = partition(pruned.graph, &devices, &ops, false)?;
    let cut = began.elapsed();

    let began = Instant::now();
    let count = parts.values().map(|part| part.node.len()).sum();
    // As it goes over a line, and to all at once.
    let register = |task: &str, part: &GraphDef| {
        let letter = part.encode_to_vec();
        let part = Graph::from_def(decode(&letter)?, &ops, Import::Part)?;
        let site = &sites[usize::from(task.starts_with("/job:b"))];
        drop(site.executor.plan(&part, task)?);
        Ok::<_, Status>(letter.len())
    };
    let bytes = std::thread::scope(|scope| {
        let mut under_way = Vec::new();
        for (task, part) in &parts {
            under_way.push(scope.spawn(|| register(task, part)));
        }
        let outcomes = under_way.into_iter().map(|part| {
            let lost = |_| Status::of(catalogue::SERVICE_FAILED, "a part was not registered");
            part.join().map_err(lost)?
        });
        outcomes.sum::<Result<usize, Status>>()
    })?;
    let registered = began.elapsed();
    Ok(Took {
        created,
        cut,
        registered,
        parts: count,
        bytes,
    })
}

fn main() -> Result<(), Status> {
    let sites = [site("/job:a/task:0")?, site("/job:b/task:0")?];
    let mut sums = Vec::new();
    for nodes in SIZES {
        let def = graph(nodes)?;
        let mut runs = (0..RUNS)
            .map(|_| take_in(&sites, &def))
            .collect::<Result<Vec<_>, _>>()?;
        runs.sort_by_key(|took| took.cut + took.registered);
        let took = &runs[RUNS / 2];
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let sum = took.cut + took.registered;
        println!(
            "{nodes} nodes, {} in parts of {} bytes: read and placed {:.1} ms, cut {:.1} ms, registered {:.1} ms; \
             cut and registered {:.1} ms",
            took.parts,
            took.bytes,
            ms(took.created),
            ms(took.cut),
            ms(took.registered),
            ms(sum)
        );
        sums.push(sum.as_secs_f64() / nodes as f64);
    }
    let ratio = sums[sums.len() - 1] / sums[0];
    println!("a node of the largest beside one of the smallest: {ratio:.2} ×");
    for site in &sites {
        site.engine.shutdown(Duration::from_secs(1));
    }
    Ok(())
}
