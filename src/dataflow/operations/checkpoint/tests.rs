//! Checkpoints: what is saved is restored, whole or not at all, and files that lie are refused.

use std::fs;
use std::path::Path;

use super::files::{Checkpoint, write};
use super::joined;
use crate::graph::attr::IntoAttr;
use crate::kernel::Value;
use crate::kernel::files::{FilePlace, Files};
use crate::operations::testing::{call, grown, home, kernel, run, run_with, tensor};
use rendez::ground::{DType, Shape, Status, TensorMeta, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::AttrValue;
use rendez_proto::tensorflow::DataType::{self, DtFloat, DtInt64, DtString};
use rendez_proto::tensorflow::attr_value::Value as AttrKind;

fn strings(items: &[&str]) -> Tensor {
    let shape = Shape::new(&[items.len() as u64]).expect("a shape");
    Tensor::from_strings(items, shape).expect("strings")
}

fn prefix(folder: &Path, name: &str) -> Tensor {
    let path = folder.join(name).display().to_string();
    Tensor::from_strings(&[path], Shape::SCALAR).expect("a string")
}

fn at(path: &Path) -> FilePlace {
    Files::below("/").place("a test", path).expect("it may")
}

fn restore(prefix: &Tensor, names: &[&str], types: &[DataType]) -> Result<Vec<Value>, Status> {
    let types = types.to_vec();
    let kernel = kernel("RestoreV2", &[DtString; 3], |node| {
        node.attr("dtypes", types)
    });
    let kernel = kernel.expect("a kernel");
    assert!(kernel.is_costly(&[]), "files are slow");
    let slices = strings(&vec![""; names.len()]);
    let inputs = [prefix.clone(), strings(names), slices].map(Value::Tensor);
    call(&*kernel, &home(), &inputs)
}

fn save(prefix: &Tensor, tensors: &[(&str, Tensor)]) -> Result<(), Status> {
    let names: Vec<_> = tensors.iter().map(|(name, _)| *name).collect();
    let head = [
        prefix.clone(),
        strings(&names),
        strings(&vec![""; names.len()]),
    ];
    let inputs: Vec<_> = head
        .into_iter()
        .chain(tensors.iter().map(|(_, tensor)| tensor.clone()))
        .collect();
    run("SaveV2", &inputs).map(drop)
}

#[test]
fn what_is_saved_is_restored_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = prefix(folder.path(), "deep/model");
    let weights = tensor(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]);
    let step = Tensor::scalar(7i64);
    for round in 0..2 {
        save(&prefix, &[("w/x", weights.clone()), ("step", step.clone())]).expect("saved");
        let values = restore(&prefix, &["step", "w/x"], &[DtInt64, DtFloat]).expect("restored");
        let values: Vec<_> = values
            .iter()
            .map(|value| value.tensor().expect("a tensor"))
            .collect();
        assert_eq!(
            (values[0].meta(), values[0].bytes()),
            (step.meta(), step.bytes()),
            "{round}"
        );
        assert_eq!(
            (values[1].meta(), values[1].bytes()),
            (weights.meta(), weights.bytes())
        );
    }
    let left: Vec<_> = fs::read_dir(folder.path().join("deep"))
        .expect("a folder")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let bytes = fs::read(folder.path().join("deep/model.safetensors")).expect("a file");
    let read =
        safetensors::SafeTensors::deserialize(&bytes).expect("the format's own library reads it");
    assert_eq!(
        read.tensor("w/x").expect("a tensor").data(),
        weights.host().unwrap()
    );
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = prefix(folder.path(), "model");
    let status = restore(&prefix, &["w"], &[DtFloat]).expect_err("no file");
    assert_eq!(status.reason(), catalogue::FILE_UNREADABLE);
    save(&prefix, &[("w", Tensor::scalar(1f32))]).expect("saved");
    let status = restore(&prefix, &["v"], &[DtFloat]).expect_err("no such tensor");
    assert_eq!(status.reason(), catalogue::CHECKPOINT_KEY);
    assert!(
        status
            .message()
            .starts_with("Key v not found in checkpoint"),
        "{status}"
    );
    let status = restore(&prefix, &["w"], &[DtInt64]).expect_err("another type");
    let text = "tensor_name = w; expected dtype int64 does not equal original dtype float";
    assert!(status.message().starts_with(text), "{status}");
}

#[test]
fn what_cannot_be_saved_leaves_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = prefix(folder.path(), "model");
    save(&prefix, &[("w", Tensor::scalar(1f32))]).expect("saved");
    assert!(save(&prefix, &[("s", strings(&["a"]))]).is_err(), "strings");
    assert!(
        save(
            &prefix,
            &[("w", Tensor::scalar(1f32)), ("w", Tensor::scalar(2f32))]
        )
        .is_err(),
        "twice"
    );
    assert!(restore(&prefix, &["w"], &[DtFloat]).is_ok());
}

#[test]
fn files_are_touched_only_below_their_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let inputs = [
        prefix(folder.path(), "model"),
        strings(&["w"]),
        strings(&[""]),
        Tensor::scalar(1f32),
    ]
    .map(Value::Tensor);
    let types = [DtString, DtString, DtString, DtFloat];
    let kernel = kernel("SaveV2", &types, |node| node).expect("a kernel");
    let elsewhere = tempfile::tempdir().expect("a folder");
    for (files, text) in [
        (Files::none(), "SaveV2 may not touch"),
        (
            Files::below(elsewhere.path()),
            "does not lie below files_root",
        ),
    ] {
        let status = call(&*kernel, &home().with_files(files), &inputs).expect_err("refused");
        assert_eq!(status.reason(), catalogue::FILES_REFUSED);
        assert!(status.message().contains(text), "{status}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let below = home().with_files(Files::below(folder.path()));
    call(&*kernel, &below, &inputs).expect("saved");
    assert!(folder.path().join("model.safetensors").is_file());
}

#[test]
fn shards_are_merged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (
        prefix(folder.path(), "part-0"),
        prefix(folder.path(), "part-1"),
    );
    save(&first, &[("a", Tensor::scalar(1f32))]).expect("saved");
    save(&second, &[("b", Tensor::scalar(2f32))]).expect("saved");
    let paths = ["part-0", "part-1"].map(|name| folder.path().join(name).display().to_string());
    let both = strings(&[&paths[0], &paths[1]]);
    let whole = prefix(folder.path(), "whole");
    run("MergeV2Checkpoints", &[both, whole.clone()]).expect("merged");
    assert!(restore(&whole, &["a", "b"], &[DtFloat, DtFloat]).is_ok());
    assert!(
        restore(&first, &["a"], &[DtFloat]).is_err(),
        "the shards are gone"
    );
}

/// As it is for a process that has no descriptor left for a moment: the file was removed, and its tensors were nowhere.
#[test]
fn a_shard_that_cannot_be_read_is_not_taken_to_be_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    save(
        &prefix(folder.path(), "part-0"),
        &[("a", Tensor::scalar(1f32))],
    )
    .expect("saved");
    let paths = ["part-0", "part-1"].map(|name| folder.path().join(name).display().to_string());
    let both = strings(&[&paths[0], &paths[1]]);
    let whole = prefix(folder.path(), "whole");
    let merge = |allow: bool| {
        let types = [DtString; 2];
        let kernel = kernel("MergeV2Checkpoints", &types, |node| {
            node.attr("allow_missing_files", allow)
        });
        let inputs = [both.clone(), whole.clone()].map(Value::Tensor);
        let below = home().with_files(Files::below(folder.path()));
        call(&*kernel.expect("a kernel"), &below, &inputs)
    };
    let unreadable = folder.path().join("part-1.safetensors");
    fs::create_dir(&unreadable).expect("a folder in its place");
    let status = merge(true).expect_err("it is there");
    assert_eq!(status.reason(), catalogue::FILE_UNREADABLE);
    assert!(unreadable.exists() && folder.path().join("part-0.safetensors").exists());
    fs::remove_dir(&unreadable).expect("removed");
    assert!(merge(false).is_err());
    merge(true).expect("merged");
    assert!(restore(&whole, &["a"], &[DtFloat]).is_ok());
}

#[test]
fn hostile_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.safetensors");
    let with_header = |header: &str| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes
    };
    let hostile = [
        vec![],
        vec![0; 7],
        u64::MAX.to_le_bytes().to_vec(),
        [1000u64.to_le_bytes().to_vec(), vec![b' '; 10]].concat(),
        with_header("nonsense"),
        with_header(r#"{"w":7}"#),
        with_header(r#"{"w":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}"#),
        with_header(r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#),
        with_header(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#),
        with_header(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#),
        with_header(
            r#"{"w":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}}"#,
        ),
        with_header(r#"{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}}"#),
        with_header(r#"{"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#),
    ];
    for (index, bytes) in hostile.iter().enumerate() {
        fs::write(&path, bytes).expect("written");
        let status = Checkpoint::open(&at(&path)).expect_err("it is refused");
        assert_eq!(
            status.reason(),
            catalogue::SAFETENSORS_MALFORMED,
            "{index}: {status}"
        );
    }
    // The format's own reader would take the last of the two.
    let twice = [r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#]
        .into_iter()
        .chain([r#""w":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#]);
    fs::write(&path, with_header(&twice.collect::<String>())).expect("written");
    let status = Checkpoint::open(&at(&path)).expect_err("it is refused");
    assert_eq!(status.reason(), catalogue::SAFETENSORS_MALFORMED);
    assert!(
        status.message().contains("'w' stands there twice"),
        "{status}"
    );
    let empty = TensorMeta {
        dtype: DType::F32,
        shape: Shape::new(&[0]).expect("a shape"),
    };
    let empty = Tensor::from_inline(empty, &[]).expect("no elements");
    write(&at(&path), &[("e", &empty)]).expect("written");
    assert_eq!(
        Checkpoint::open(&at(&path)).expect("a file").meta("e"),
        Some(empty.meta())
    );
}

fn join(inputs: &[Tensor], separator: impl IntoAttr) -> Result<Tensor, Status> {
    let joined = run_with("StringJoin", inputs, |node| {
        node.attr("N", inputs.len() as i64)
            .attr("separator", separator)
    });
    Ok(joined?.remove(0))
}

#[test]
fn strings_are_joined_row_by_row_and_a_scalar_goes_with_all() {
    let scalar = Tensor::from_strings(&["x"], Shape::SCALAR).expect("a string");
    let joined = join(&[strings(&["a", "", "c"]), scalar.clone()], "-").expect("strings");
    let rows: Vec<_> = joined.strings().expect("strings").iter().collect();
    assert_eq!(rows, [&b"a-x"[..], b"-x", b"c-x"]);
    let value = AttrValue {
        value: Some(AttrKind::S(vec![0xff])),
    };
    let joined = join(&[scalar.clone(), scalar.clone()], value).expect("a string");
    let rows: Vec<_> = joined.strings().expect("strings").iter().collect();
    assert_eq!(rows, [b"x\xffx"]);
    let joined = join(&[scalar.clone(), scalar], "").expect("a string");
    assert_eq!(joined.shape(), Shape::SCALAR);
    assert_eq!(joined.strings().expect("strings").at(0), Some(&b"xx"[..]));
}

/// A peer may change the table of strings that it lends while they are read.
#[test]
fn strings_that_have_gone_are_no_others() {
    let [row, one] = [vec![&b"a"[..], b"b"], vec![&b"x"[..]]];
    let rows = joined(&[row.clone(), one], 2, b"-").expect("rows");
    assert_eq!(rows, [b"a-x", b"b-x"]);
    let fault = joined(&[row.clone(), row], 3, b"").expect_err("a row is gone");
    let text = fault.at("n", "StringJoin").to_string();
    assert!(text.contains("changed while they were read"), "{text}");
}

#[test]
fn what_is_joined_to_too_much_is_refused_before_it_is_copied() {
    let one = |bytes| {
        let text = "x".repeat(bytes);
        Tensor::from_strings(&[text], Shape::SCALAR).expect("a string")
    };
    let refused = |inputs: &[Tensor]| {
        let status = join(inputs, "").expect_err("more than a tensor may have");
        assert_eq!(status.reason(), catalogue::GRAPH_LIMIT, "{status}");
    };
    // A node that is read many times, and a scalar that goes with many rows.
    let more = grown(|| {
        refused(&vec![one(4 << 20); 300]);
        refused(&[one(1 << 20), strings(&vec![""; 1100])]);
    });
    assert!(more < 512 << 10, "{more} kB more than before");
}
