//! `rendez run` from outside: graphs with feeds in files, each task a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::ports::free_ports;
use serde_json::Value;

fn rendez(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().expect("the command starts")
}

/// The objects that a command printed, which ended well.
fn objects(output: &Output) -> Vec<Value> {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
    out.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn refused(output: &Output, code: i32, wanted: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for wanted in wanted {
        assert!(said.contains(wanted), "{said}\nsays nothing of {wanted}");
    }
}

/// A graph that TensorFlow exported.
fn graph(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/graphs")
        .join(name);
    path.to_string_lossy().into_owned()
}

/// A file as NumPy writes it.
fn array(folder: &Path, name: &str, descr: &str, shape: &str, data: &[u8]) -> PathBuf {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let len = (header.len() as u16).to_le_bytes();
    let bytes = [
        b"\x93NUMPY\x01\x00".as_slice(),
        &len,
        header.as_bytes(),
        data,
    ]
    .concat();
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("is written");
    path
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A constant, as a graph's text has it.
fn constant(name: &str, base: &str, dims: &str, value: &str) -> String {
    format!(
        "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: {base} }} }} attr {{ key: 'value' \
         value {{ tensor {{ dtype: {base} tensor_shape {{ {dims} }} {value} }} }} }} }}\n"
    )
}

/// An operation on floats, as a graph's text has it.
fn of_floats(name: &str, op: &str, [left, right]: [&str; 2]) -> String {
    format!(
        "node {{ name: '{name}' op: '{op}' input: '{left}' input: '{right}' attr {{ key: 'T' value {{ type: DT_FLOAT \
         }} }} }}\n"
    )
}

#[test]
fn a_graph_is_run_with_files_in_and_out() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    for (name, values) in [("a", [1.0, 2.0]), ("b", [3.0, -4.0]), ("c", [0.5, 8.0])] {
        array(
            place,
            &format!("{name}.npy"),
            "<f4",
            "(2,)",
            &floats(&values),
        );
    }
    let feeds = [
        "--feed",
        "a=a.npy",
        "--feed",
        "b:0=b.npy",
        "--feed",
        "c=c.npy",
    ];
    // In either format, and without the tasks that it asks for.
    for file in ["partial_run/graph.pb", "partial_run/graph.pbtxt"] {
        let graph = graph(file);
        let mut arguments = vec![
            "run",
            &graph,
            "--json",
            "--fetch",
            "second",
            "--fetch",
            "third:0",
            "--out",
            "first=first.npy",
        ];
        arguments.extend(feeds);
        let said = objects(&rendez(place, &arguments));
        assert_eq!(
            said[0],
            serde_json::json!({"fetch": "second", "dtype": "f32", "shape": [2], "values": [2.0, -16.0]})
        );
        assert_eq!(said[1]["values"], serde_json::json!([-17.0]));
        let written = std::fs::read(place.join("first.npy")).expect("the array");
        assert_eq!(written[128..], floats(&[4.0, -2.0]));
    }
    let graph = graph("partial_run/graph.pb");
    let mut arguments = vec![
        "run", &graph, "--target", "second", "--repeat", "50", "--json",
    ];
    arguments.extend(feeds);
    let said = objects(&rendez(place, &arguments));
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0]["steps"], 50);
    assert!(said[0]["step_ns"]["p50"].as_f64() > Some(0.0), "{said:?}");
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    let graph = graph("partial_run/graph.pb");
    refused(&rendez(place, &["run", &graph]), 2, &["USAGE", "--fetch"]);
    refused(
        &rendez(place, &["run", &graph, "--feed", "a", "--fetch", "b"]),
        2,
        &["x:0=values.npy"],
    );
    refused(
        &rendez(place, &["run", "none.pb", "--fetch", "b"]),
        1,
        &["FILE_UNREADABLE", "none.pb"],
    );
    refused(
        &rendez(place, &["run", &graph, "--fetch", "nobody"]),
        1,
        &["GRAPH_ENDPOINT_UNKNOWN", "nobody"],
    );
    refused(
        &rendez(place, &["run", &graph, "--fetch", "first"]),
        1,
        &["'a'", "feed"],
    );
    std::fs::write(place.join("bad.pbtxt"), "node {\n  nome: 'x'\n}\n").expect("is written");
    let said = rendez(place, &["run", "bad.pbtxt", "--fetch", "x"]);
    refused(
        &said,
        1,
        &["GRAPH_MALFORMED", "bad.pbtxt", "line 2, column 3", "nome"],
    );
    array(place, "big.npy", ">f4", "(2,)", &[0; 8]);
    let said = rendez(
        place,
        &["run", &graph, "--feed", "a=big.npy", "--fetch", "first"],
    );
    refused(&said, 1, &["NPY_MALFORMED", "big.npy", "big-endian"]);
    array(place, "ints.npy", "<i4", "(2,)", &[0; 8]);
    let said = rendez(
        place,
        &[
            "run",
            &graph,
            "--feed",
            "a=ints.npy",
            "--feed",
            "b=ints.npy",
            "--fetch",
            "first",
        ],
    );
    refused(&said, 1, &["FEED_UNFIT"]);
    refused(
        &rendez(place, &["train", "digits", "--ps", "0"]),
        2,
        &["--ps"],
    );
    refused(
        &rendez(place, &["train", "digits", "--resume"]),
        2,
        &["--checkpoint"],
    );
    let said = rendez(
        place,
        &["train", "digits", "--resume", "--checkpoint", "none"],
    );
    refused(&said, 1, &["FILE_UNREADABLE", "none/digits.safetensors"]);
}

#[test]
fn a_step_is_run_as_often_as_is_asked() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    let text = [
        constant("zero", "DT_FLOAT", "", "float_val: 0"),
        constant("one", "DT_FLOAT", "", "float_val: 1"),
        "node { name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } } attr { key: 'shape' value { \
         shape { } } } }\n"
            .to_owned(),
        of_floats("init", "Assign", ["v", "zero"]),
        of_floats("add", "AssignAdd", ["v", "one"]),
    ];
    std::fs::write(place.join("count.pbtxt"), text.concat()).expect("written");
    for repeat in ["1", "5"] {
        let arguments = [
            "run",
            "count.pbtxt",
            "--init",
            "init",
            "--fetch",
            "add",
            "--repeat",
            repeat,
            "--json",
        ];
        let said = objects(&rendez(place, &arguments));
        let counted: f64 = repeat.parse().expect("a number");
        assert_eq!(said[0]["values"], serde_json::json!([counted]));
    }
}

/// Fills a tensor of eight million bytes.
fn fill(place: &Path, more: &[&str]) -> Output {
    let text = [
        constant("dims", "DT_INT32", "dim { size: 1 }", "int_val: 2000000"),
        constant("value", "DT_FLOAT", "", "float_val: 1"),
        of_floats("fill", "Fill", ["dims", "value"]),
    ];
    std::fs::write(place.join("fill.pbtxt"), text.concat()).expect("written");
    let arguments = ["run", "fill.pbtxt", "--target", "fill", "--json"];
    rendez(place, &[&arguments, more].concat())
}

#[test]
fn a_process_alone_takes_its_settings() {
    let place = tempfile::tempdir().expect("a folder");
    assert!(objects(&fill(place.path(), &[])).is_empty());
    let small = ["--arena-segment-bytes", "1MiB", "--arena-bytes", "2MiB"];
    refused(&fill(place.path(), &small), 1, &["ARENA_UNFIT"]);
    // Another task may have its name and its address.
    let task = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = task.local_addr().expect("an address").to_string();
    for setting in ["--listen", "--metrics"] {
        assert!(objects(&fill(place.path(), &[setting, &address])).is_empty());
    }
    // No recorder can lie there.
    assert!(objects(&fill(place.path(), &["--recorder-dir", "fill.pbtxt"])).is_empty());
}

#[test]
fn no_output_replaces_another() {
    let place = tempfile::tempdir().expect("a folder");
    for other in ["out.npy", "./out.npy"] {
        let outs = ["--out", "fill=out.npy", "--out", &format!("value={other}")];
        refused(
            &fill(place.path(), &outs),
            2,
            &["USAGE", "the --out of two"],
        );
    }
    assert!(!place.path().join("out.npy").exists());
}

#[test]
fn a_process_with_a_root_is_not_alone() {
    let place = tempfile::tempdir().expect("a folder");
    let rooted = ["--root", "127.0.0.1:1", "--rank", "2", "--world-size", "2"];
    let said = fill(place.path(), &rooted);
    refused(&said, 78, &["a rank is below the size"]);
}

/// A graph names files, and the user who runs it may not be the owner of those files.
#[test]
fn a_graph_touches_files_only_below_a_folder_that_was_named() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    let graph = |prefix: &str| {
        let string = |name: &str, dims: &str, value: &str| {
            constant(name, "DT_STRING", dims, &format!("string_val: '{value}'"))
        };
        let one = "dim { size: 1 }";
        let text = [
            string("prefix", "", prefix),
            string("names", one, "w"),
            string("slices", one, ""),
            constant("w", "DT_FLOAT", "", "float_val: 7"),
            "node { name: \"save\" op: \"SaveV2\" input: \"prefix\" input: \"names\" input: \"slices\" input: \"w\" \
             attr { key: \"dtypes\" value { list { type: DT_FLOAT } } } }\n"
                .to_owned(),
        ];
        let path = place.join("save.pbtxt");
        std::fs::write(&path, text.concat()).expect("written");
        path.to_string_lossy().into_owned()
    };
    let save = |prefix: &str, more: &[&str]| {
        let graph = graph(prefix);
        rendez(
            place,
            &[&["run", &*graph, "--target", "save"], more].concat(),
        )
    };
    let well = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    // The working folder, by either name; nothing beside it.
    let inside = place.join("whole").to_string_lossy().into_owned();
    for (prefix, file) in [("deep/model", "deep/model"), (&inside, "whole")] {
        well(&save(prefix, &[]));
        assert!(place.join(format!("{file}.safetensors")).is_file());
    }
    let outside = tempfile::tempdir().expect("a folder");
    let path = outside.path().join("model").to_string_lossy().into_owned();
    for prefix in [&*path, "../model"] {
        refused(
            &save(prefix, &[]),
            1,
            &[
                "error[FILES_REFUSED]",
                "does not lie below files_root",
                "SaveV2",
            ],
        );
    }
    well(&save(
        &path,
        &["--files", &outside.path().to_string_lossy()],
    ));
    assert!(outside.path().join("model.safetensors").is_file());
    // A task that runs already touches nothing until it is told where.
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let mut task = command
        .args([
            "serve",
            "--cluster",
            &format!("a={address}"),
            "--job",
            "a",
            "--task",
            "0",
        ])
        .args(["--shards", "1", "--share-cores"])
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    // What its machine has, and its address for metrics, are its own.
    let more = [
        "--on",
        &address,
        "--files-root",
        "/nowhere",
        "--metrics",
        &address,
    ];
    let output = save("remote", &more);
    let _ = task.kill();
    let _ = task.wait();
    refused(
        &output,
        1,
        &[
            "error[FILES_REFUSED]",
            "SaveV2 may not touch",
            "files_root is not set",
        ],
    );
    assert!(!place.join("remote.safetensors").exists());
}
