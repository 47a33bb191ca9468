//! Tidy: the house rules, checked by machine. Each violation names its place, its rule and the remedy.
//!
//! Reads the repository's text and nothing else; that a rule catches what it should is tested in `tidy/planted.rs`.
//! A rule that must yield somewhere yields in the lists below, for a reason that stands beside it; what is listed
//! and no longer needed is a violation itself.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/book.rs"]
mod book;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/image.rs"]
mod image;
#[path = "tidy/locks.rs"]
mod locks;
#[path = "tidy/planted.rs"]
mod planted;
#[path = "tidy/proofs.rs"]
mod proofs;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/scripts.rs"]
mod scripts;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/tables.rs"]
mod tables;
#[path = "tidy/terms.rs"]
mod terms;
#[path = "tidy/words.rs"]
mod words;

use source::Source;

/// Pages beside the book that must be in plain English.
const PAGES: &[&str] = &[
    "README.md",
    "bench/PROMISES.md",
    "src/ARCHITECTURE.md",
    "src/core/wire/WIRE.md",
    "src/rendez/control/THREAT_MODEL.md",
    "src/rendez/engine/FAILURE_MODEL.md",
];

/// The files that may hold `unsafe`.
const UNSAFE_FILES: &[&str] = &[
    // Blocks that come home from any thread, mapped segments, and views of their bytes.
    "src/memory/accelerator.rs",
    "src/memory/arena.rs",
    "src/memory/arena/tests.rs",
    "src/memory/block.rs",
    // CUDA's driver: its functions, and what they are given.
    "src/memory/cuda/driver.rs",
    "src/memory/cuda/mapping.rs",
    "src/memory/cuda/sys/layout.rs",
    "src/memory/cuda/sys/loaded.rs",
    "src/memory/cuda/sys/table.rs",
    "src/memory/cuda/tests.rs",
    "src/memory/cuda/tests/copies.rs",
    "src/memory/cuda/tests/world.rs",
    "src/memory/buffer.rs",
    "src/memory/device_arena.rs",
    "src/memory/element.rs",
    "src/memory/home.rs",
    "src/memory/lanes.rs",
    "src/memory/lease.rs",
    "src/memory/mapped.rs",
    "src/memory/mapping.rs",
    "src/memory/memfd.rs",
    "src/memory/memfd/tests.rs",
    // Memory of the host that devices write too, streams, and copies between them.
    "src/memory/pinned.rs",
    "src/memory/pool.rs",
    "src/memory/private.rs",
    "src/memory/returns.rs",
    "src/memory/spans.rs",
    "src/memory/staging.rs",
    "src/memory/stream.rs",
    "src/memory/tensor.rs",
    // Counters and a ring of events that outlive their process.
    "src/memory/words.rs",
    // Rings in memory that another process writes too, and the words that wake it.
    "src/fabric/doorbell.rs",
    "src/fabric/lane.rs",
    "src/fabric/link.rs",
    "src/fabric/listeners.rs",
    "src/fabric/ring.rs",
    "src/fabric/spsc.rs",
    // RDMA: the library's functions, queues that work on registered memory, and that memory.
    "src/fabric/verbs/chain.rs",
    "src/fabric/verbs/completion.rs",
    "src/fabric/verbs/device.rs",
    "src/fabric/verbs/domain.rs",
    "src/fabric/verbs/link/sending.rs",
    "src/fabric/verbs/port.rs",
    "src/fabric/verbs/port/progress.rs",
    "src/fabric/verbs/queue_pair.rs",
    "src/fabric/verbs/shared_receive.rs",
    "src/fabric/verbs/slots.rs",
    "src/fabric/verbs/stage.rs",
    "src/fabric/verbs/sys/inline.rs",
    "src/fabric/verbs/sys/linked.rs",
    "src/fabric/verbs/sys/loaded.rs",
    "src/fabric/verbs/sys/table.rs",
    "src/fabric/verbs/sys/types.rs",
    // Who may touch a shard now.
    "src/drive/baton.rs",
    // The processor's own counter.
    "src/trace/clock.rs",
    // A handler for forks, which no safe crate registers.
    "src/mail/forks.rs",
    // Descriptors that came over a socket, and a runtime's file descriptor, and rings on trial.
    "src/control/ancillary.rs",
    "src/control/lane/tests.rs",
    "src/control/credentials.rs",
    "src/control/runtime.rs",
    "src/control/runtime/tests.rs",
    "src/control/runtime/trial.rs",
    // What C passes and is given.
    "src/capi/api.rs",
    "src/capi/device.rs",
    "src/capi/device/tests.rs",
    "src/capi/engine.rs",
    "src/capi/key.rs",
    "src/capi/logs.rs",
    "src/capi/receive.rs",
    "src/capi/status.rs",
    "src/capi/tensor.rs",
    "src/capi/tests.rs",
    // What Python lends and is lent: buffers, DLPack, capsules, and calls for its main thread.
    "src/python/buffer.rs",
    "src/python/capsule.rs",
    "src/python/device.rs",
    "src/python/device_room.rs",
    "src/python/dlpack.rs",
    "src/python/errands.rs",
    "src/python/source.rs",
    "src/python/tensor.rs",
    "src/python/writable.rs",
    // What a command does to signals, and between fork and exec of a child.
    "src/cli/itself.rs",
    // Measuring instruments: the counting allocator, a line between two processes.
    "src/cli/allocations.rs",
    "src/cli/baseline/line.rs",
];

/// Where a rule yields: file, rule, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "src/engine/recording.rs",
        "day",
        "how far a peer's time of day is off is a figure for who compares logs; nothing is measured by it",
    ),
    (
        "src/rpc/spans/recording.rs",
        "day",
        "spans of several machines are put side by side by it; how long they took is measured by the agent's clock",
    ),
    // The hot path returns the small `Refusal`; who leaves it asks for the text, once.
    (
        "src/rendezvous/refusal.rs",
        "format",
        "makes the text of a refusal for the edge",
    ),
    // Launchers write their variables as we write our reasons.
    (
        "src/cluster/variables.rs",
        "reasons",
        "holds the names of environment variables and nothing else",
    ),
];

/// A place where a rule does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            what,
            remedy,
        } = self;
        write!(f, "{path}:{line}: [{rule}] {what}; {remedy}")
    }
}

fn violation(
    source: &Source,
    line: usize,
    rule: &'static str,
    what: impl Into<String>,
    remedy: &'static str,
) -> Violation {
    Violation {
        path: source.path.clone(),
        line,
        rule,
        what: what.into(),
        remedy,
    }
}

/// All rules over all files.
fn check(
    sources: &[Source],
    unsafe_files: &[&str],
    exceptions: &[(&str, &str, &str)],
) -> Vec<Violation> {
    let mut found = vec![];
    for source in sources {
        found.extend(tables::look(source));
        found.extend(words::check(source));
        found.extend(prose::check(source));
        found.extend(terms::check(source));
        found.extend(floors::check(source));
    }
    found.extend(proofs::check(sources, unsafe_files));
    found.extend(terms::types(sources));
    found.extend(tables::limits(sources));
    found.extend(tables::reasons(sources));
    for (path, rule, _) in exceptions {
        let all = found.len();
        found.retain(|violation| violation.path != *path || violation.rule != *rule);
        if found.len() == all {
            found.push(Violation {
                path: (*path).into(),
                line: 1,
                rule: "exceptions",
                what: format!("needs no exception from [{rule}]"),
                remedy: "take it off EXCEPTIONS in tests/tidy.rs",
            });
        }
    }
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    found
}

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = vec![];
    for folder in ["src", "tests", "bench", "proto"] {
        collect(root, &root.join(folder), &mut sources);
    }
    // Rules about these say nothing where they are gone.
    for path in [
        "src/lib.rs",
        tables::LIMITS,
        &format!("{}/peers.rs", tables::CATALOGUE),
    ] {
        let is_there = sources.iter().any(|source| source.path == path);
        assert!(is_there, "{path} is not under {}", root.display());
    }
    let mut found = check(&sources, UNSAFE_FILES, EXCEPTIONS);
    if let Ok(text) = fs::read_to_string(root.join("bench/PROMISES.md")) {
        found.extend(tables::promises("bench/PROMISES.md", &text));
    }
    let mut pages = vec![];
    collect_pages(root, &root.join("src/book"), &mut pages);
    for path in [book::SUMMARY, book::ERRORS] {
        assert!(pages.iter().any(|page| page.path == path), "{path}");
    }
    for name in ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            let path = name.to_owned();
            pages.push(book::Page { path, text });
        }
    }
    let exists = |path: &str| root.join(path).exists();
    for page in &pages {
        found.extend(prose::check_page(&page.path, &page.text));
        found.extend(book::lost_paths(page, &exists));
    }
    for path in PAGES {
        let text =
            fs::read_to_string(root.join(path)).unwrap_or_else(|_| panic!("{path} is there"));
        found.extend(prose::check_page(path, &text));
        let path = (*path).to_owned();
        let page = book::Page { path, text };
        found.extend(book::lost_paths(&page, &exists));
        if page.path == "README.md" {
            found.extend(book::long_prose(&page));
        }
        if page.path.ends_with("_MODEL.md") {
            found.extend(book::lost_names(&page, &sources));
        }
    }
    found.extend(book::check(&pages, &sources, &exists));
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        lines.join("\n")
    );
}

#[test]
fn what_is_generated_is_as_old_as_its_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let sums = fs::read_to_string(root.join("generated/SOURCES")).expect("it is there");
    for entry in fs::read_dir(&root).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path
            .extension()
            .is_none_or(|extension| extension != "proto")
        {
            continue;
        }
        let name = path.file_name().expect("a file").to_string_lossy();
        let bytes = fs::read(&path).expect("every source can be read");
        let line = format!("{:016x} {name}", fnv(&bytes));
        assert!(
            sums.lines().any(|sum| sum == line),
            "proto/{name} was changed: cargo run -p rendez-proto-generate"
        );
    }
}

/// What simulations are made of is in no build that ships: `testing` is named among dev-dependencies alone.
#[test]
fn no_dependency_that_ships_is_for_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
    let members = image::members(&manifest).map(|member| format!("{member}/Cargo.toml"));
    let mut named = 0;
    for path in members.chain(["Cargo.toml".into()]) {
        let text = fs::read_to_string(root.join(&path)).expect("every member has one");
        let mut section = "";
        for line in text.lines() {
            section = if line.starts_with('[') { line } else { section };
            if section.contains("dependencies") && line.contains("\"testing\"") {
                assert!(
                    section.contains("dev-dependencies"),
                    "{path}: {line}: it would ship"
                );
                named += 1;
            }
        }
    }
    assert!(named > 0, "no manifest names it");
}

#[test]
fn the_image_has_every_member_of_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let (manifest, recipe) = (read("Cargo.toml"), read("scripts/release/Containerfile"));
    assert!(
        manifest.contains("\nmembers = ["),
        "image.rs finds the list"
    );
    let missing = image::missing(&manifest, &recipe);
    assert!(
        missing.is_empty(),
        "scripts/release/Containerfile: COPY {} too: cargo reads every member of the workspace",
        missing.join(", ")
    );
}

#[test]
fn the_fuzzer_has_the_versions_that_are_locked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let (lock, fuzz) = (read("Cargo.lock"), read("tests/fuzz/Cargo.lock"));
    let apart = locks::apart(&lock, &fuzz);
    assert!(
        apart.is_empty(),
        "tests/fuzz/Cargo.lock has other versions than Cargo.lock: {}; cp Cargo.lock tests/fuzz/ && \
         cargo metadata --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null",
        apart.join(", ")
    );
}

/// What is delivered beside the program names what there is: to Prometheus a metric that is not there is one without
/// values, whose rule never fires, and a task ends at its start because of a setting that is not there.
#[test]
fn alerts_charts_and_manifests_name_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let metrics = read("src/rendez/engine/METRICS.md") + &read("src/rpc/METRICS.md");
    let settings = read("src/rendez/engine/CONFIG.md");
    let mut checked = 0;
    for (path, text) in all_scripts() {
        let (page, start) = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json" | "yml") => (&metrics, "rendez_"),
            Some("yaml" | "service") => (&settings, "RENDEZ_"),
            _ => continue,
        };
        let named = tables::names(&text, start);
        checked += named.len();
        let is_lost = |name: &&&str| {
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            !page.contains(&format!("`{name}`"))
        };
        let lost: Vec<_> = named.iter().filter(is_lost).collect();
        assert!(
            lost.is_empty(),
            "{}: nothing is called {lost:?}",
            path.display()
        );
    }
    assert!(checked > 40, "only {checked} names were found");
}

/// All files below `scripts` and `.ci` that are text.
fn all_scripts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join("scripts"), root.join(".ci")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    found
}

/// Most of them no check ever starts.
#[test]
fn every_script_can_be_read_by_its_shell() {
    let mut count = 0;
    for (path, text) in all_scripts() {
        if !text.starts_with("#!/usr/bin/env bash") && !path.ends_with("run.sh") {
            continue;
        }
        count += 1;
        let read = Command::new("bash").arg("-n").arg(&path).output();
        let read = read.expect("bash is there");
        let said = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success(), "{}: {said}", path.display());
    }
    assert!(count > 20, "only {count} scripts of bash were found");
}

#[test]
fn no_script_takes_a_line_that_was_found_for_a_failure() {
    let mut found = Vec::new();
    for (path, text) in all_scripts() {
        let lines = scripts::hasty_greps(&text);
        let lines = lines.iter();
        found.extend(lines.map(|line| format!("{}:{line}", path.display())));
    }
    assert!(
        found.is_empty(),
        "{}: a pipe into `grep -q` fails by chance under pipefail; write `grep … >/dev/null`",
        found.join(", ")
    );
}

/// The hash of Fowler, Noll and Vo, variant 1a, of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the repository can be read").path())
        .collect();
    paths.sort();
    for path in paths {
        // What is generated has its generator's look.
        if path.is_symlink() || path == root.join("proto/generated") {
        } else if path.is_dir() {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are UTF-8");
            let inside = path.strip_prefix(root).expect("the walk began at the root");
            // Rooms are named alike, whichever crate they stand in.
            let mut inside = inside.to_string_lossy().into_owned();
            for house in ["src/core/", "src/rendez/", "src/dataflow/", "src/autograd/"] {
                inside = inside.replace(house, "src/");
            }
            let mut source = Source::new(&inside, &text);
            let mut folders = path
                .strip_prefix(root)
                .expect("the walk began at the root")
                .iter();
            let house = (folders.next(), folders.next());
            if let (Some(_), Some(house)) = house {
                source.house = house.to_string_lossy().into_owned();
            }
            sources.push(source);
        }
    }
}

fn collect_pages(root: &Path, folder: &Path, pages: &mut Vec<book::Page>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the repository can be read").path();
        if path.is_dir() {
            collect_pages(root, &path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).expect("pages are UTF-8");
            let inside = path.strip_prefix(root).expect("the walk began at the root");
            let path = inside.to_string_lossy().into_owned();
            pages.push(book::Page { path, text });
        }
    }
}
