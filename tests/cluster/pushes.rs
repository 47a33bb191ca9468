//! Files of tensors between tasks: the same bytes come out, at both ends it is known what, and nothing is left of what
//! was not finished.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;

use ring::digest::{SHA256, digest};
use serde_json::json;

use crate::support::{Ended, Place, Process, text, until};

const A: &str = "/job:a/task:0";
const B: &str = "/job:b/task:0";

/// How many pairs there were.
static PAIRS: AtomicU8 = AtomicU8::new(1);

/// Two tasks of which one pushes to the other.
struct Pair {
    place: Place,
    cluster: String,
    folder: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let place = Place::new();
        // A loopback address of its own: tasks of these names run in many tests at once.
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let host = format!("127.{high}.{low}.{}", PAIRS.fetch_add(1, Ordering::Relaxed));
        let cluster = format!("a={host}:29700;b={host}:29701");
        let folder = place.file("mark", "").with_file_name("");
        Self {
            place,
            cluster,
            folder,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn arguments<'a>(&'a self, first: &[&'a str], job: &'a str) -> Vec<&'a str> {
        let of = ["--cluster", &self.cluster, "--job", job, "--task", "0"];
        first.iter().chain(&of).copied().collect()
    }

    fn serve(&self, job: &str) -> Process {
        let serve = self.place.start(&self.arguments(&["serve"], job));
        serve.await_said("at rendez://");
        serve
    }

    fn pull(&self, out: &str) -> Process {
        self.place
            .start(&self.arguments(&["pull", "--json", "--from", A, "--out", out], "b"))
    }

    fn push(&self, files: &[&str]) -> Ended {
        let first: Vec<_> = ["push", "--json", "--to", B]
            .iter()
            .chain(files)
            .copied()
            .collect();
        self.place.run(&self.arguments(&first, "a"))
    }

    /// Pushes and pulls, and compares what both say with the files.
    fn exchange(&self, files: &[&str], out: &str, compared: &[(PathBuf, PathBuf)]) {
        let pull = self.pull(out);
        let push = self.push(files).well();
        let pull = pull.finish().well();
        let (pushed, pulled) = (push.objects(), pull.objects());
        let (pushed, pulled) = (pushed.last(), pulled.last());
        let (pushed, pulled) = (pushed.expect("an object"), pulled.expect("an object"));
        assert_eq!(pushed["is_written"], true, "{}", push.said);
        for ((source, copy), index) in compared.iter().zip(0..) {
            let bytes = fs::read(source).expect("readable");
            assert!(
                bytes == fs::read(copy).expect("it is there"),
                "{} came out as it went in",
                copy.display()
            );
            let sum: String = digest(&SHA256, &bytes)
                .as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(pushed["files"][index]["sha256"], *sum, "{}", push.said);
            assert_eq!(pushed["files"][index]["sha256_there"], *sum);
            assert_eq!(pulled["files"][index]["sha256"], *sum, "{}", pull.said);
        }
    }
}

/// A file of weights: tensors of so many floats, and what the header says of the whole.
fn weights(path: &Path, tensors: &[(&str, usize)], metadata: &str) {
    let mut header = serde_json::Map::new();
    header.insert(
        "__metadata__".into(),
        json!({ "format": metadata, "step": "17" }),
    );
    let mut data = Vec::new();
    for (name, len) in tensors {
        let begin = data.len();
        data.extend((0..len * 4).map(|at| (at * 31 + begin + at / 251) as u8));
        let entry = json!({ "dtype": "F32", "shape": [len], "data_offsets": [begin, data.len()] });
        header.insert((*name).into(), entry);
    }
    let begin = data.len();
    data.extend([1, 2, 3]);
    let entry = json!({ "dtype": "F8_E4M3", "shape": [3], "data_offsets": [begin, begin + 3] });
    header.insert(format!("{metadata}.narrow"), entry);
    let mut header = serde_json::to_vec(&header).expect("written");
    // As others pad it, and one more.
    header.resize(header.len().next_multiple_of(8) + 8, b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    fs::write(path, bytes).expect("written");
}

/// A model in two files, and its index.
fn model(folder: &Path) -> Vec<String> {
    fs::create_dir_all(folder).expect("made");
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    weights(&folder.join(names[0]), &[("a", 1000), ("b", 1)], "one");
    weights(&folder.join(names[1]), &[("c", 70_000)], "two");
    let index = json!({
        "metadata": { "total_size": 284_010 },
        "weight_map": {
            "a": names[0], "b": names[0], "one.narrow": names[0], "c": names[1], "two.narrow": names[1],
        },
    });
    let index = serde_json::to_string_pretty(&index).expect("written");
    fs::write(folder.join(names[2]), index).expect("written");
    names.map(str::to_owned).to_vec()
}

#[test]
fn a_file_comes_out_as_it_went_in() {
    let pair = Pair::new();
    let (file, copy) = (pair.at("model.safetensors"), pair.at("copy.safetensors"));
    weights(&file, &[("x", 3), ("empty", 0), ("y", 100_000)], "pt");
    let compared = [(file.clone(), copy.clone())];
    pair.exchange(&[text(&file)], text(&copy), &compared);
    // Over what was there, and into a folder that is there.
    weights(&file, &[("z", 10)], "np");
    pair.exchange(&[text(&file)], text(&copy), &compared);
    fs::create_dir(pair.at("folder")).expect("made");
    let compared = [(file.clone(), pair.at("folder/model.safetensors"))];
    pair.exchange(&[text(&file)], "folder", &compared);
}

#[test]
fn a_model_in_several_files_comes_out_as_a_folder() {
    let pair = Pair::new();
    let names = model(&pair.at("model"));
    fs::write(pair.at("model/notes.txt"), "of no concern").expect("written");
    for (pushed, out) in [
        ("model/model.safetensors.index.json", "by-index"),
        ("model", "by-folder"),
    ] {
        let compared: Vec<_> = names
            .iter()
            .map(|name| (pair.at("model").join(name), pair.at(out).join(name)))
            .collect();
        pair.exchange(&[pushed], out, &compared);
        let found = fs::read_dir(pair.at(out)).expect("a folder").count();
        assert_eq!(found, names.len());
    }
    // Several files have no place in one.
    fs::write(pair.at("one"), "old").expect("written");
    let pull = pair.pull("one");
    let pushed = pair.push(&["model"]);
    pull.finish()
        .refused(1, "FILE_UNWRITABLE", &["3 files come"]);
    pushed.refused(1, "FILE_UNWRITABLE", &["gave up", "3 files come"]);
    assert_eq!(fs::read(pair.at("one")).expect("it is there"), b"old");
}

/// In each of the ways: beside a task that runs on one side, on the other, on both.
#[test]
fn where_the_task_runs_already_they_are_visitors_beside_it() {
    for served in [&["a"][..], &["b"], &["a", "b"]] {
        let pair = Pair::new();
        let tasks: Vec<_> = served.iter().map(|job| pair.serve(job)).collect();
        let (file, copy) = (pair.at("model.safetensors"), pair.at("copy.safetensors"));
        weights(&file, &[("x", 3), ("y", 100_000)], "pt");
        let compared = [(file.clone(), copy.clone())];
        pair.exchange(&[text(&file)], text(&copy), &compared);
        // The push first, and another task's in between.
        // The settings are those of the task, whose recorders may be out of reach.
        let first = [
            "push",
            "--recorder-dir",
            text(&file),
            "--to",
            B,
            text(&file),
        ];
        let push = pair.place.start(&pair.arguments(&first, "a"));
        let pull = pair.pull("second.safetensors");
        pull.finish().well();
        let pushed = push.finish().well();
        assert!(pushed.said.contains("(the same there)"), "{}", pushed.said);
        assert!(
            pushed.said.contains("written and synced there"),
            "{}",
            pushed.said
        );
        for task in tasks {
            task.stop().well();
        }
        pair.place.await_nobody();
    }
}

#[test]
fn what_has_the_port_and_is_no_such_task_is_told() {
    let pair = Pair::new();
    let port = pair.cluster.split(['=', ';']).nth(1).expect("an address");
    let _other = std::net::TcpListener::bind(port).expect("bound");
    let first = ["push", "--patience", "1s", "--to", B];
    let pushed = pair.place.run(&pair.arguments(&first, "a"));
    pushed.refused(1, "PEER_DUPLICATE_NAME", &["rendez serve"]);
}

#[test]
fn the_push_ends_well_only_when_all_is_written() {
    let pair = Pair::new();
    let file = pair.at("model.safetensors");
    weights(&file, &[("x", 300_000)], "pt");
    let pull = pair.pull("/dev/full");
    let pushed = pair.push(&[text(&file)]);
    pull.finish()
        .refused(1, "FILE_UNWRITABLE", &["/dev/full", "No space left"]);
    pushed.refused(
        1,
        "FILE_UNWRITABLE",
        &[B.trim_end_matches("/task:0"), "No space left"],
    );

    // A FIFO and the standard output are written through.
    let fifo = pair.at("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("it runs");
    assert!(made.success());
    let (told, heard) = mpsc::channel();
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || told.send(fs::read(fifo)))
    };
    let pull = pair.pull(text(&fifo));
    pair.push(&[text(&file)]).well();
    pull.finish().well();
    let read = heard.recv().expect("it reads").expect("it can");
    assert!(
        read == fs::read(&file).expect("readable"),
        "it came through"
    );
    let _ = reader.join();

    let arguments = pair.arguments(&["pull", "--from", A, "--out", "/dev/stdout"], "b");
    let mut pull = pair.place.command(&arguments);
    let mut pull = pull
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut output = pull.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| bytes)
    });
    pair.push(&[text(&file)]).well();
    assert!(pull.wait().expect("it ends").success());
    let read = reader.join().expect("it ends").expect("it reads");
    assert!(
        read == fs::read(&file).expect("readable"),
        "and nothing else"
    );
}

/// Bytes that a process has written, as the system counts them.
fn written_by(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn a_pull_that_is_killed_leaves_nothing_and_is_no_success() {
    let pair = Pair::new();
    let file = pair.at("model.safetensors");
    let names: Vec<_> = (0..16).map(|at| format!("t{at}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), 1 << 18)).collect();
    weights(&file, &tensors, "pt");
    fs::create_dir(pair.at("out")).expect("made");
    let out = pair.at("out/copy.safetensors");
    for after in [0, 1 << 20, 6 << 20] {
        let arguments = pair.arguments(&["pull", "--from", A, "--out", text(&out)], "b");
        let mut pull = pair.place.command(&arguments);
        let mut pull = pull
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let first = ["push", "--to", B, "--patience", "5s", text(&file)];
        let push = pair.place.start(&pair.arguments(&first, "a"));
        let pid = pull.id();
        until("it has written so much", || {
            written_by(pid) > after || pull.try_wait().is_ok_and(|ended| ended.is_some())
        });
        let _ = pull.kill();
        let status = pull.wait().expect("it ended");
        let pushed = push.finish();
        let left: Vec<_> = fs::read_dir(pair.at("out"))
            .expect("a folder")
            .flatten()
            .map(|entry| entry.path())
            .collect();
        let is_whole =
            || fs::read(&out).is_ok_and(|copy| copy == fs::read(&file).expect("readable"));
        if left.is_empty() {
            assert_ne!(pushed.code, Some(0), "{}: {}", after, pushed.said);
        } else {
            // It was too quick to be killed before.
            assert!(left == [out.clone()] && is_whole(), "{left:?}: {status}");
            fs::remove_file(&out).expect("removed");
        }
    }
}

#[test]
fn a_full_disk_leaves_nothing() {
    let pair = Pair::new();
    let file = pair.at("model.safetensors");
    weights(&file, &[("x", 300_000)], "pt");
    let disk = pair.at("disk");
    fs::create_dir(&disk).expect("made");
    let script = "mount -t tmpfs -o size=256k none disk && echo mounted \
                  && \"$0\" \"$@\"; code=$?; ls -A disk | wc -l; exit $code";
    let usual = pair.place.command(&[]);
    let arguments = pair.arguments(
        &["pull", "--from", A, "--out", "disk/copy.safetensors"],
        "b",
    );
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(usual.get_program());
    command
        .args(&arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    for (name, value) in usual.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(&pair.folder);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root
        || !Command::new("unshare")
            .args(["-m", "true"])
            .status()
            .is_ok_and(|ended| ended.success())
    {
        crate::skipped::skipped("only root mounts a small disk");
        return;
    }
    let pull = Process::start(command);
    pull.await_said("mounted");
    let pushed = pair.push(&[text(&file)]);
    let pulled = pull.finish();
    pulled.refused(1, "FILE_UNWRITABLE", &["copy.safetensors", "No space left"]);
    assert!(
        pulled.said.lines().any(|line| line.trim() == "0"),
        "{}",
        pulled.said
    );
    pushed.refused(1, "FILE_UNWRITABLE", &["No space left"]);
}

#[test]
fn what_is_no_model_is_refused_before_anybody_is_asked() {
    let pair = Pair::new();
    let place = &pair.place;
    let refused = |file: &Path, reason: &str, texts: &[&str]| {
        let pushed = pair.push(&[text(file)]);
        pushed.refused(1, reason, texts);
    };
    let good = pair.at("good.safetensors");
    weights(&good, &[("x", 10)], "pt");
    let bytes = fs::read(&good).expect("readable");
    for len in [0, 7, 20, bytes.len() - 1] {
        let cut = pair.at("cut.safetensors");
        fs::write(&cut, &bytes[..len]).expect("written");
        refused(&cut, "SAFETENSORS_MALFORMED", &["cut.safetensors"]);
    }
    let long = pair.at("long.safetensors");
    for claim in [u64::MAX, 1 << 40, 100_000_001, bytes.len() as u64] {
        let mut bytes = bytes.clone();
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        fs::write(&long, bytes).expect("written");
        refused(&long, "SAFETENSORS_MALFORMED", &["bytes of header"]);
    }
    let twice = pair.at("twice.safetensors");
    let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let header = format!(r#"{{"x":{entry},"x":{entry}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.push(1);
    fs::write(&twice, bytes).expect("written");
    refused(&twice, "SAFETENSORS_MALFORMED", &["'x' stands there twice"]);

    model(&pair.at("model"));
    let index = pair.at("model/model.safetensors.index.json");
    let whole = fs::read_to_string(&index).expect("readable");
    for (from, to, reason, said) in [
        (
            "model-00002-of-00002",
            "../good",
            "MODEL_INDEX_MALFORMED",
            "no file of its own folder",
        ),
        (
            "model-00002-of-00002",
            "/etc/x",
            "MODEL_INDEX_MALFORMED",
            "no file of its own folder",
        ),
        (
            "model-00002-of-00002",
            "model-00003-of-00002",
            "FILE_UNREADABLE",
            "model-00003",
        ),
        ("\"c\":", "\"absent\":", "MODEL_INDEX_MALFORMED", "'absent'"),
        ("weight_map", "map", "MODEL_INDEX_MALFORMED", "weight_map"),
    ] {
        fs::write(&index, whole.replace(from, to)).expect("written");
        refused(&index, reason, &[said]);
    }
    fs::write(&index, whole).expect("written");
    fs::remove_file(pair.at("model/model-00001-of-00002.safetensors")).expect("removed");
    refused(&pair.at("model"), "FILE_UNREADABLE", &["model-00001"]);
    fs::create_dir(pair.at("empty")).expect("made");
    refused(&pair.at("empty"), "FILE_UNREADABLE", &["no file in it"]);
    // Two of one name.
    let other = pair.at("empty/good.safetensors");
    fs::copy(&good, &other).expect("copied");
    let pushed = pair.push(&[text(&good), text(&other)]);
    pushed.refused(2, "USAGE", &["two files are called 'good.safetensors'"]);
    // A pull asks no one either before it knows where to write.
    let pull = place.run(&pair.arguments(&["pull", "--from", A, "--out", "absent/x"], "b"));
    pull.refused(1, "FILE_UNWRITABLE", &["absent"]);
    let pull =
        place.run(&pair.arguments(&["pull", "--from", A, "--out", "good.safetensors/"], "b"));
    pull.refused(1, "FILE_UNWRITABLE", &["good.safetensors"]);
}

/// A file that is cut short after it was opened: the pull is told why nothing more comes, and leaves nothing.
#[test]
fn a_source_that_fails_tells_why() {
    let pair = Pair::new();
    let file = pair.at("model.safetensors");
    weights(&file, &[("x", 10), ("y", 100_000)], "pt");
    let first = ["push", "--to", B, text(&file)];
    let push = pair.place.start(&pair.arguments(&first, "a"));
    let asked = pair.arguments(&["ping", A, "--count", "1"], "b");
    until("it listens", || pair.place.run(&asked).code == Some(0));
    let long = File::options().write(true).open(&file).expect("opened");
    long.set_len(1000).expect("cut");
    pair.pull("copy.safetensors")
        .finish()
        .refused(1, "FILE_UNREADABLE", &["gave up", "shrank"]);
    push.finish().refused(1, "FILE_UNREADABLE", &["shrank"]);
    assert!(!pair.at("copy.safetensors").exists());
}
