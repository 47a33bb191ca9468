//! Graphs that TensorFlow exported, cut over three processes: every step of `tests/data/graphs`, with equal results.
//!
//! Whole numbers, truth values and strings must be equal, floating-point numbers to a few units of their last place
//! beside the largest of their tensor: products of matrices are summed in another order here.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::ports::free_ports;
use rendez::cluster::ClusterSpec;
use rendez::engine::Config;
use rendez::ground::{DType, Shape, TaskName};
use rendez::memory::{Bool8, Tensor};
use rendez_dataflow::graph::decode;
use rendez_dataflow::server::{PartialRun, Server, Session};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// How far a number may be off, as a part of the largest of its tensor.
const TOLERANCE: f64 = 2e-6;

/// Three tasks of one cluster: the first worker in this process, which is the master, the others each in one of its
/// own.
struct Cluster {
    master: Server,
    others: Vec<Child>,
}

impl Cluster {
    fn new() -> Self {
        let addresses = free_ports::<3>().map(|port| format!("127.0.0.1:{port}"));
        let [ps, one, two] = &addresses;
        let spec = format!("ps={ps};worker={one},{two}");
        let serve = |task: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
            command
                .args(["serve", "--with-parent", "--shards=1", "--share-cores=true"])
                .args([
                    "--arena-segment-bytes=4MiB",
                    "--cluster",
                    &spec,
                    "--task",
                    task,
                ])
                .env("RENDEZ_LOG", "rendez=warn")
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            command.spawn().expect("the command starts")
        };
        let others = vec![serve("/job:ps/task:0"), serve("/job:worker/task:1")];
        let task = TaskName::new("worker", 0, 0).expect("a name");
        let mut config = Config::new(task.to_string());
        (config.shards, config.share_cores) = (1, true);
        config.arena.segment_bytes = 4 << 20;
        let cluster = ClusterSpec::parse(&spec).expect("a cluster");
        let builder = Server::builder().config(config).cluster(cluster);
        let master = builder.task(task).build().expect("a server");
        master.start().expect("starts");
        Self { master, others }
    }

    fn session(&self) -> Session {
        Session::on(&self.master).expect("a session")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.master.stop(Some(Duration::from_secs(1)));
        for other in &mut self.others {
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/graphs")
        .join(name)
}

/// The steps of a graph, each on the session that the steps before left behind.
fn runs_as_tensorflow_did(name: &str) {
    let cluster = Cluster::new();
    let session = cluster.session();
    let text = std::fs::read_to_string(folder(name).join("steps.json")).expect("the steps");
    let case: Value = serde_json::from_str(&text).expect("JSON");
    let graph = std::fs::read(folder(name).join("graph.pb")).expect("the graph");
    session
        .create(decode(&graph).expect("a graph"))
        .expect("a session with its graph");
    let mut partial: Option<PartialRun> = None;
    for (at, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
        let what = format!("{name}, step {at}");
        let kind = step["kind"].as_str().expect("a kind");
        if kind == "partial_setup" {
            let (feeds, fetches) = (texts(&step["feeds"]), texts(&step["fetches"]));
            partial = Some(session.partial_run(&feeds, &fetches, &[]).expect(&what));
            continue;
        }
        let feeds: Vec<_> = pairs(&step["feeds"])
            .map(|(name, value)| (name, tensor(value)))
            .collect();
        if kind == "fails" {
            let status = session.run_within(PATIENCE, &feeds, &texts(&step["fetches"]), &[]);
            let status = status.expect_err(&what);
            assert_eq!(status.reason(), "FETCH_DEAD", "{what}: {status}");
            continue;
        }
        let fetches: Vec<_> = pairs(&step["fetches"]).map(|(name, _)| name).collect();
        let found = match (&partial, kind) {
            (Some(partial), "partial_run") => partial.run_within(PATIENCE, &feeds, &fetches),
            (_, "run") => session.run_within(PATIENCE, &feeds, &fetches, &texts(&step["targets"])),
            _ => panic!("{what}: a {kind}"),
        };
        let found = found.unwrap_or_else(|status| panic!("{what}: {status}"));
        assert_eq!(found.len(), fetches.len(), "{what}");
        for ((fetch, wanted), found) in pairs(&step["fetches"]).zip(&found) {
            assert_equal(&format!("{what}, {fetch}"), found, &tensor(wanted));
        }
    }
    session.close().expect("is closed");
}

fn pairs(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let object = object.as_object().expect("an object");
    object.iter().map(|(name, value)| (name.as_str(), value))
}

fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|text| text.as_str().expect("a text"))
        .collect()
}

/// A value of a step.
fn tensor(value: &Value) -> Tensor {
    let dims: Vec<u64> = value["shape"]
        .as_array()
        .expect("a shape")
        .iter()
        .map(|dim| dim.as_u64().expect("a size"))
        .collect();
    let shape = Shape::new(&dims).expect("a shape");
    if value["dtype"] == "string" {
        let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
        let items: Vec<Vec<u8>> = texts(&value["hex"])
            .into_iter()
            .map(|hex| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect())
            .collect();
        return Tensor::from_strings(&items, shape).expect("strings");
    }
    let values = value["values"].as_array().expect("values");
    let floats = || values.iter().map(|value| value.as_f64().expect("a number"));
    let ints = || {
        values
            .iter()
            .map(|value| value.as_i64().expect("a whole number"))
    };
    match value["dtype"].as_str().expect("a type") {
        "float" => Tensor::from_vec(floats().map(|value| value as f32).collect(), shape),
        "double" => Tensor::from_vec(floats().collect::<Vec<_>>(), shape),
        "int32" => Tensor::from_vec(ints().map(|value| value as i32).collect(), shape),
        "int64" => Tensor::from_vec(ints().collect::<Vec<_>>(), shape),
        "bool" => Tensor::from_vec(
            values
                .iter()
                .map(|value| Bool8::from(value.as_bool().expect("a truth value")))
                .collect(),
            shape,
        ),
        other => panic!("values of type {other}"),
    }
    .expect("a tensor")
}

fn assert_equal(what: &str, found: &Tensor, wanted: &Tensor) {
    assert_eq!(
        (found.dtype(), found.shape()),
        (wanted.dtype(), wanted.shape()),
        "{what}"
    );
    if found.dtype() == DType::F32 {
        let (found, wanted) = (
            found.as_slice::<f32>().expect("floats"),
            wanted.as_slice::<f32>().expect("floats"),
        );
        let largest = wanted.iter().fold(1e-3f64, |largest, value| {
            largest.max(f64::from(value.abs()))
        });
        for (found, wanted) in found.iter().zip(wanted) {
            let off = (f64::from(*found) - f64::from(*wanted)).abs();
            assert!(
                off <= TOLERANCE * largest,
                "{what}: {found} is not {wanted}"
            );
        }
    } else {
        assert_eq!(found.bytes(), wanted.bytes(), "{what}");
    }
}

/// A test for each folder, and one that none is forgotten.
macro_rules! graphs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                runs_as_tensorflow_did(stringify!($name));
            }
        )*

        #[test]
        fn every_graph_is_run() {
            let known = [$(stringify!($name)),*];
            let mut found = 0;
            for entry in std::fs::read_dir(folder("")).expect("the graphs") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    let name = path.file_name().expect("a name").to_string_lossy();
                    assert!(known.contains(&&*name), "{name} has no test");
                    found += 1;
                }
            }
            assert_eq!(found, known.len());
        }
    };
}

graphs! {
    softmax_regression
    mlp_momentum
    mlp_adam
    while_loop
    conditional
    partial_run
    strings
    dead_branches
}
