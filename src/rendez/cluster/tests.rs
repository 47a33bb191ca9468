//! Launchers as they are, from samples of their environments, and as they should not be.

mod hostile;
mod launchers;
mod messages;
mod texts;

use std::collections::BTreeMap;

use super::*;
use crate::ground::Status;

/// The environment of a sample: `NAME=value` lines, and comments.
fn environment(sample: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once('=').expect("NAME=value");
        (name.to_owned(), value.to_owned())
    };
    let lines = sample
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(pair).collect()
}

fn surroundings(pairs: &[(&str, &str)]) -> Surroundings {
    let environment = pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Surroundings {
        environment,
        ..Surroundings::default()
    }
}

fn of_sample(sample: &str) -> Surroundings {
    Surroundings {
        environment: environment(sample),
        ..Surroundings::default()
    }
}

fn with_file(text: &str) -> Surroundings {
    Surroundings {
        file: Some(File {
            path: "here.toml".into(),
            text: text.into(),
        }),
        ..Surroundings::default()
    }
}

#[track_caller]
fn known(resolved: &Resolved) -> &ClusterSpec {
    match &resolved.membership {
        Membership::Known(spec) => spec,
        Membership::Rooted { .. } => panic!("only the root is known: {resolved:?}"),
    }
}

#[track_caller]
fn root(resolved: &Resolved) -> (String, u32, u32) {
    match &resolved.membership {
        Membership::Rooted { root, rank, size } => (root.to_string(), *rank, *size),
        Membership::Known(_) => panic!("all are known: {resolved:?}"),
    }
}

#[track_caller]
fn refused(surroundings: &Surroundings, reason: &str, text: &str) -> Status {
    let status = resolve(surroundings).expect_err("it makes no sense");
    assert_eq!(status.reason(), reason, "{status}");
    assert!(status.message().contains(text), "{text} in {status}");
    let entry = crate::ground::catalogue::find(reason).expect("a row of the catalogue");
    assert_eq!(entry.code, status.code());
    status
}
