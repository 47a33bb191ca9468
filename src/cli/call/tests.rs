//! The commands against a worker that runs in this process.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rendez::engine::{Config, Engine};
use rendez_rpc::{Functions, Options, Worker};

use super::*;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The exit status of a command, what it prints, and its errors.
fn command(words: &[&str]) -> (u8, String, String) {
    let (kept, mut errors) = (Kept::default(), Vec::new());
    let mut terminal = Terminal::into_writer(Box::new(kept.clone()), None);
    let words = ["rendez"].iter().chain(words).map(std::ffi::OsString::from);
    let status = crate::run(words, &mut terminal, &mut errors);
    let out = String::from_utf8(kept.0.lock().expect("no panic").clone()).expect("a text");
    (status, out, String::from_utf8(errors).expect("a text"))
}

fn scale(tensor: Tensor, by: f32) -> Result<Tensor, String> {
    let all = tensor
        .as_slice::<f32>()
        .map_err(|error| error.to_string())?;
    let scaled: Vec<f32> = all.iter().map(|value| value * by).collect();
    Tensor::from_vec(scaled, tensor.shape()).map_err(|error| error.to_string())
}

fn fail(why: String) -> Result<(), String> {
    Err(why)
}

static NEXT: AtomicU32 = AtomicU32::new(0);
/// How often `count` was called.
static COUNTED: AtomicU32 = AtomicU32::new(0);

fn worker() -> (Engine, Agent) {
    let mut config = Config::new(format!(
        "/job:called/task:{}",
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    (config.shards, config.share_cores) = (1, true);
    config.poll = rendez::drive::PollPolicy::Park;
    let engine = Engine::start(config).expect("an engine");
    let functions = Functions::new()
        .add("add", |a: i64, b: i64| a.wrapping_add(b))
        .add("greet", |text: String| format!("{text}, you"))
        .add("scale", scale)
        .add("fail", fail)
        .add("slow", || std::thread::sleep(Duration::from_secs(3600)))
        .add("count", || {
            u64::from(COUNTED.fetch_add(1, Ordering::Relaxed))
        })
        .add("keep", |number: u64| number)
        .add("odd\x1b[2J", |number: u64| number);
    let alone = Worker::new("alone", engine.task().to_string());
    let options = Options::of_workers([alone]).functions(functions);
    let agent = Agent::init(&engine, "alone", options).expect("an agent");
    (engine, agent)
}

#[test]
fn a_worker_is_called_by_commands() {
    let (engine, agent) = worker();
    let address = engine.address().expect("it listens").to_string();
    let call = |words: &[&str]| command(&[&["call", &address], words].concat());
    let (status, out, errors) = call(&[]);
    assert_eq!((status, &*errors), (0, ""));
    assert!(out.contains("add(i64,i64,) -> i64\n"), "{out}");
    // What a worker says reaches no terminal as commands.
    assert!(
        out.contains("odd\\u{1b}[2J") && !out.contains('\x1b'),
        "{out}"
    );
    for words in [
        &["fail", "a\x1b[2J\n\tb"][..],
        &["nothing"],
        &["odd\x1b[2J"],
    ] {
        let errors = call(words).2;
        assert!(errors.contains("\\u{1b}[2J"), "{words:?}: {errors}");
    }
    let (_, _, errors) = call(&["fail", "a\x1b[2J\n\tb"]);
    assert!(
        errors.contains("[2J\n\tb") && !errors.contains('\x1b'),
        "{errors}"
    );
    assert_eq!(call(&["add", "2", "-3"]), (0, "-1\n".into(), String::new()));
    assert_eq!(call(&["greet", "hello"]).1, "\"hello, you\"\n");
    let (_, out, _) = call(&["scale", "[1,2,3]", "0.5"]);
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["data"], serde_json::json!([0.5, 1.0, 1.5]));

    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (there, back) = (file("x.npy"), file("y.npy"));
    let values: Vec<f32> = (0..100_000_u32).map(|at| (at % 65_536) as f32).collect();
    let shape = rendez::ground::Shape::new(&[100, 1000]).expect("a shape");
    let tensor = Tensor::from_vec(values, shape).expect("a tensor");
    let output = Output::open(Path::new(&there)).expect("a file");
    npy::write(Path::new(&there), output, &tensor).expect("written");
    let done = call(&["scale", &format!("@{there}"), "2", "--out", &back]);
    assert_eq!(done, (0, String::new(), String::new()));
    let scaled = npy::read(Path::new(&back)).expect("a tensor");
    assert_eq!(scaled.shape(), tensor.shape());
    assert_eq!(
        scaled.as_slice::<f32>().expect("f32")[99_999],
        2.0 * 34_463.0
    );

    let ends = |words: &[&str], status: u8, reason: &str| {
        let (ended, out, errors) = call(words);
        assert_eq!((ended, &*out), (status, ""), "{words:?}: {errors}");
        assert!(errors.contains(reason), "{words:?}: {errors}");
    };
    ends(&["fail", "it must"], 19, "it must");
    ends(&["slow", "--timeout", "50ms"], 20, "RPC_TIMEOUT");
    ends(&["nothing"], 1, "RPC_FUNCTION");
    ends(&["add", "2"], 1, "takes 2 arguments");
    ends(&["add", "2", "x"], 1, "argument 2 of add(i64,i64,)");
    for tensor in [
        r#"{"dtype":"f16","shape":[1],"data":[70000]}"#,
        r#"{"dtype":"bf16","shape":[1],"data":[3.4e38]}"#,
        "[1e39]",
        "[\"1e400\"]",
    ] {
        ends(&["scale", tensor, "1"], 1, "is no tensor");
    }
    ends(&["scale", "[1]", "1e39"], 1, "is no f32");
    let (_, out, _) = call(&["scale", "[\"-inf\"]", "inf"]);
    assert!(out.contains("-inf"), "{out}");
    ends(&["scale", "@/no/such/file.npy", "2"], 1, "FILE_UNREADABLE");
    ends(&["add", "1", "2", "--group", "other"], 1, "RPC_WORKER");
    // What cannot be written is not asked for.
    ends(&["count", "--out", &file("z.npy")], 1, "is no tensor");
    assert_eq!(COUNTED.load(Ordering::Relaxed), 0);
    agent.shutdown(Duration::from_secs(60)).expect("it leaves");
}

#[test]
fn references_are_listed() {
    let (engine, agent) = worker();
    let address = engine.address().expect("it listens").to_string();
    assert_eq!(command(&["rrefs", &address]).1, "there are no references\n");
    let kept = agent
        .remote::<u64>("alone", "keep", (7_u64,))
        .expect("a reference");
    assert_eq!(kept.to_here().expect("a value"), 7);
    let (status, out, errors) = command(&["rrefs", &address, "--json"]);
    assert_eq!((status, &*errors), (0, ""));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&value["owner"], &value["state"]),
        (&"alone".into(), &"made".into())
    );
    assert_eq!(value["at"], engine.task().to_string());
    let (_, out, _) = command(&["rrefs", &address]);
    let head: Vec<&str> = out
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(head[..3], ["reference", "owner", "state"], "{out}");
    drop(kept);
    agent.shutdown(Duration::from_secs(60)).expect("it leaves");
}

/// Also where folders are called as files of weights are.
#[test]
fn the_file_of_an_argument_is_told_from_its_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let engine = Engine::start(config).expect("it starts");
    let folder = folder.path().join("a.safetensors.bak");
    std::fs::create_dir(&folder).expect("made");
    let header = br#"{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2]].concat();
    let file = folder.join("m.safetensors");
    std::fs::write(&file, bytes).expect("written");
    let file = file.to_str().expect("a text");
    for text in [format!("{file}:w"), format!("{file}:"), file.to_owned()] {
        let tensor = load(&engine, &text).expect("it is there");
        assert_eq!(tensor.as_slice::<u8>().expect("bytes"), [1, 2], "{text}");
    }
    let absent = folder.join("x.npy");
    let failed = |path: &Path| {
        let path = path.to_str().expect("a text");
        load(&engine, path).expect_err("it gives no tensor")
    };
    let error = failed(&absent);
    assert!(error.message().contains("x.npy"), "{error}");
    // A file may say that it has more than there is memory, and be as long as that with holes.
    let header =
        br#"{"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}"#;
    let start = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    let huge = folder.join("huge.safetensors");
    std::fs::write(&huge, &start).expect("written");
    let file = std::fs::File::options()
        .append(true)
        .open(&huge)
        .expect("opened");
    file.set_len(start.len() as u64 + (1 << 40))
        .expect("a hole");
    assert_eq!(failed(&huge).reason(), catalogue::ARENA_UNFIT);
}
