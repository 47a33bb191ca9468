//! The whole program from outside: the demonstration between two processes, and what is left when one is killed.
//!
//! Each demonstration is started with a mark in its environment, which both its processes carry: a process that still
//! carries it afterwards was left behind. What a process holds (sockets, memory files) is written down just before it
//! is killed and looked for afterwards by inode, so that other programs of this machine do not disturb.
//!
//! `SEED=n` repeats a run's choices, `KILLS=n` makes more of them.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use serde_json::Value;

/// The exit status of a command whose peer is lost; the table is the README's.
const PEER_LOST: i32 = 12;

/// How soon the other process must have ended by itself.
const BOUND: Duration = Duration::from_secs(1);

/// How long anything may take that has no promised bound, before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(30);

/// Demonstrations poll two cores without end: two at once would wait for each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// ─────────────────────────────────────────────── a demonstration that works ─────────────────────────────────────────

#[test]
fn the_demonstration_hands_every_tensor_over() {
    let _alone = alone();
    let output = finished(&["--json", "--rounds", "3"]);
    assert!(has_succeeded(&output), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (total, tensors) = lines.split_last().unwrap();
    let found: BTreeSet<(&str, u64)> = tensors
        .iter()
        .map(|line| {
            (
                line["tensor"].as_str().unwrap(),
                line["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    let weights = rendez_cli::weights::Weights::built_in().unwrap();
    let expected = weights
        .entries()
        .iter()
        .map(|entry| (&*entry.name, entry.len))
        .collect();
    assert_eq!(found, expected);
    for line in tensors {
        // What fits a frame travels in it; what lies in an arena of a process of ours is read where it lies.
        let path = if line["bytes"].as_u64().unwrap() <= 1000 {
            "inline"
        } else {
            "lease"
        };
        assert_eq!(line["path"], path, "{line}");
        assert!(
            line["latency_ns"].as_u64().unwrap() > 0 && line["first_ns"].as_u64().unwrap() > 0,
            "{line}"
        );
    }
    assert_eq!(
        (&total["checked"], &total["rounds"], &total["tensors"]),
        (&true.into(), &2.into(), &12.into())
    );
    assert!(
        total["latency_ns"]["p99_9"].as_f64().unwrap() > 0.0,
        "{total}"
    );
}

/// True if it has, and complained of nothing but of other programs on its cores.
fn has_succeeded(output: &Output) -> bool {
    let is_expected = |line: &str| line.contains("core is shared with another thread");
    output.status.success() && text(&output.stderr).lines().all(is_expected)
}

#[test]
fn the_table_and_its_summary_are_for_people() {
    let _alone = alone();
    let output = finished(&[]);
    assert!(has_succeeded(&output), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let weights = rendez_cli::weights::Weights::built_in().unwrap();
    for entry in weights.entries() {
        let is_row = |line: &&str| line.split_whitespace().next() == Some(&*entry.name);
        assert_eq!(
            shown.lines().filter(is_row).count(),
            1,
            "{} in {shown}",
            entry.name
        );
    }
    for told in [
        "GB/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "control",
        "huge pages",
        "busy",
        "every byte",
    ] {
        assert!(
            shown.contains(told) || told == "busy" && shown.contains("adaptive"),
            "{told} in {shown}"
        );
    }
    assert!(
        !shown.contains('\u{1b}') && !shown.contains('█'),
        "a pipe gets no progress bar: {shown}"
    );
}

#[test]
fn one_core_is_shared_and_said_so() {
    let _alone = alone();
    let mut command = demo(&["--rounds", "3"]);
    let Some(core) = core_affinity::get_core_ids()
        .unwrap_or_default()
        .first()
        .copied()
    else {
        return;
    };
    // Children start with their parent's mask; it is this thread's alone, and given back.
    let all: Vec<_> = core_affinity::get_core_ids().unwrap_or_default();
    let output = std::thread::spawn(move || {
        assert!(core_affinity::set_for_current(core));
        command.output().unwrap()
    });
    let output = output.join().unwrap();
    assert!(!all.is_empty());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("only one core may be used") && shown.contains("adaptive"),
        "{shown}"
    );
}

#[test]
fn a_file_of_odd_names_and_shapes_arrives_whole() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd.safetensors");
    let tensor = |name: &str, dtype: &str, shape: &str, from: u32, to: u32| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let tensors = [
        tensor("", "U8", "[3]", 0, 3),
        tensor("a;b", "I16", "[2,2]", 3, 11),
        tensor("#1", "F32", "[0,7]", 11, 11),
        tensor("big", "U8", "[3000000]", 11, 3_000_011),
    ];
    let header = format!("{{{}}}", tensors.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..3_000_011u32).map(|at| (at * 7 % 251) as u8));
    std::fs::write(&path, file).unwrap();
    let output = finished(&["--json", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 5);
    let empty = directory.path().join("empty.safetensors");
    std::fs::write(&empty, [&2u64.to_le_bytes()[..], b"{}"].concat()).unwrap();
    let output = finished(&[empty.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn the_hidden_side_refuses_to_run_alone() {
    let peer = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_rendez"))
            .arg("demo-peer")
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = peer(&["--parent", "1", "--address", "unix:@nobody", "--core", "0"]);
    assert_eq!(output.status.code(), Some(PEER_LOST));
    assert!(
        text(&output.stderr).starts_with("error[PEER_LOST]: "),
        "{}",
        text(&output.stderr)
    );
    let output = peer(&["--parent", "1", "--address", "nowhere", "--core", "0"]);
    assert!(
        text(&output.stderr).starts_with("error[DEMO_PEER_MISUSED]: "),
        "{}",
        text(&output.stderr)
    );
    let own = std::process::id().to_string();
    let output = peer(&[
        "--parent",
        &own,
        "--address",
        "unix:@nobody",
        "--core",
        "0",
        "/nonexistent",
    ]);
    assert!(
        text(&output.stderr).starts_with("error[FILE_UNREADABLE]: "),
        "{}",
        text(&output.stderr)
    );
}

// ────────────────────────────────────────────────────── kill -9 ─────────────────────────────────────────────────────

/// Which process is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Producer,
    Consumer,
}

/// What a demonstration is at when its process is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// Within the first milliseconds of the second process.
    StartUp,
    /// While tensors go over, again and again.
    Handing,
    /// Anywhere in the life of a short demonstration: at its end, if the moment is late.
    Anywhere,
}

#[test]
fn killing_the_consumer_ends_the_producer() {
    kill_many(Victim::Consumer);
}

#[test]
fn killing_the_producer_ends_the_consumer() {
    kill_many(Victim::Producer);
}

fn kill_many(victim: Victim) {
    let _alone = alone();
    adopt_orphans();
    let seed = number("SEED").unwrap_or(0x5eed);
    let wanted = number("KILLS").unwrap_or(24);
    let mut rng = rendez::ground::rng::Rng::new(seed ^ victim as u64);
    let (mut killed, mut late, mut slowest) = (0, 0, Duration::ZERO);
    for attempt in 0.. {
        if killed == wanted {
            break;
        }
        assert!(
            late <= 4 * wanted,
            "nearly every kill came too late: {late} of {attempt}"
        );
        let moment = [Moment::StartUp, Moment::Handing, Moment::Anywhere][attempt % 3];
        let told = format!("SEED={seed} attempt {attempt}: {victim:?} at {moment:?}");
        match kill_one(victim, moment, &mut rng, &told) {
            Some(took) => {
                killed += 1;
                slowest = slowest.max(took);
            }
            None => late += 1,
        }
    }
    eprintln!("{victim:?}: {killed} killed, {late} too late, the other ended within {slowest:?}");
}

/// Starts a demonstration and kills one of its processes. Returns how long the other took to end; nothing if all was
/// over before.
fn kill_one(
    victim: Victim,
    moment: Moment,
    rng: &mut rendez::ground::rng::Rng,
    told: &str,
) -> Option<Duration> {
    let (arguments, latest_us): (&[&str], u64) = match moment {
        Moment::StartUp => (&["--linger", "20s"], 15_000),
        Moment::Handing => (&["--linger", "20s"], 300_000),
        Moment::Anywhere => (&["--rounds", "40"], 90_000),
    };
    let mut run = Run::start(arguments);
    let producer = run.process.id();
    let consumer = run.consumer(told)?;
    std::thread::sleep(Duration::from_micros(rng.below(latest_us)));
    let held = Held::by(&[producer, consumer]);
    let since = Instant::now();
    let (killed, left) = match victim {
        Victim::Producer => (producer, consumer),
        Victim::Consumer => (consumer, producer),
    };
    kill(killed);
    let (status, took, behind) = run.end_after(killed, left, since, told);
    let producer_status = if victim == Victim::Producer {
        run.end_of(producer, told)
    } else {
        status
    };
    let words = run.words();
    run.is_gone(&held, told);
    let was_over = match victim {
        // A producer that ends well has seen its consumer end well.
        Victim::Consumer => status.success(),
        Victim::Producer => {
            producer_status.signal().is_none() || status.success() && moment == Moment::Anywhere
        }
    };
    if was_over {
        return None;
    }
    let bounded = took.min(behind);
    assert!(
        bounded < BOUND,
        "{told}: the other took {took:?} to end, {behind:?} from the killed one's end: {words}"
    );
    assert_eq!(
        status.code(),
        Some(PEER_LOST),
        "{told}: the other ended with {status}: {words}"
    );
    assert!(words.contains("error[PEER_LOST]: "), "{told}: {words}");
    Some(bounded)
}

/// A demonstration under way, and its mark.
struct Run {
    process: Child,
    mark: String,
    temporary: tempfile::TempDir,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mark = format!("RENDEZ_TEST_MARK={}", temporary.path().display());
        let mut command = demo(arguments);
        command
            .env("RENDEZ_TEST_MARK", temporary.path())
            .env("TMPDIR", temporary.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Self {
            process: command.spawn().unwrap(),
            mark,
            temporary,
        }
    }

    /// The second process, as soon as there is one; `None` if the first has ended.
    fn consumer(&mut self, told: &str) -> Option<u32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(child) = children(self.process.id()).first() {
                return Some(*child);
            }
            if self.process.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "{told}: no second process");
            std::thread::yield_now();
        }
    }

    /// Waits for the end of the process that is left when the other was killed: how it ended, how long after `since`,
    /// and how long after nothing of the other was left. A killed process is not gone at once: the kernel takes its
    /// rings down on threads of its own, which wait for a core as all others do, and until then it cannot be known.
    fn end_after(
        &mut self,
        killed: u32,
        left: u32,
        since: Instant,
        told: &str,
    ) -> (ExitStatus, Duration, Duration) {
        let mut gone = since;
        let status = self.end_while(left, told, || {
            if is_leaving_still(killed) {
                gone = Instant::now();
            }
        });
        (status, since.elapsed(), gone.elapsed())
    }

    /// Waits for the end of one of the two.
    fn end_of(&mut self, process: u32, told: &str) -> ExitStatus {
        self.end_while(process, told, || {})
    }

    /// As [`Run::end_of`], looking at something else meanwhile. The first process is ours, and the second becomes ours
    /// when the first dies.
    fn end_while(&mut self, process: u32, told: &str, mut look: impl FnMut()) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if process == self.process.id() {
                if let Some(status) = self.process.try_wait().unwrap() {
                    return status;
                }
            } else if let Ok(Some((_, status))) =
                rustix::process::waitpid(pid(process), WaitOptions::NOHANG)
            {
                return ExitStatus::from_raw(status.as_raw());
            } else if !Path::new(&format!("/proc/{process}")).exists() {
                // The first process had already learned how the second ended: well, or it would have gone on.
                return ExitStatus::default();
            }
            if Instant::now() > deadline {
                kill(process);
                panic!(
                    "{told}: process {process} does not end: {}",
                    std::fs::read_to_string("/proc/loadavg").unwrap()
                );
            }
            look();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// What the two wrote to standard error. Ends when both have.
    fn words(&mut self) -> String {
        let mut words = String::new();
        if let Some(mut pipe) = self.process.stderr.take() {
            pipe.read_to_string(&mut words).unwrap();
        }
        words
    }

    /// Nothing of the demonstration is left.
    fn is_gone(&self, held: &Held, told: &str) {
        let left = marked(&self.mark);
        assert!(left.is_empty(), "{told}: processes {left:?} are left");
        let files: Vec<_> = std::fs::read_dir(self.temporary.path()).unwrap().collect();
        assert!(files.is_empty(), "{told}: {files:?}");
        let files: Vec<_> = held
            .files
            .iter()
            .filter(|path| Path::new(path).exists())
            .collect();
        assert!(files.is_empty(), "{told}: files {files:?} are left");
        // The kernel takes rings down on threads of its own, after the process is gone, and sockets with them.
        let (mut left, deadline) = (held.sockets_left(), Instant::now() + BOUND);
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            left = held.sockets_left();
        }
        assert!(left.is_empty(), "{told}: sockets are left: {left:?}");
        let mapped = mappers(&held.memory);
        assert!(
            mapped.is_empty(),
            "{told}: memory files are mapped by {mapped:?}"
        );
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What some processes hold: sockets and memory files by inode.
#[derive(Default, Debug)]
struct Held {
    sockets: BTreeSet<u64>,
    memory: BTreeSet<u64>,
    /// Paths of files in places that are open to all.
    files: BTreeSet<String>,
}

impl Held {
    fn by(processes: &[u32]) -> Self {
        let mut held = Self::default();
        for process in processes {
            let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
                continue;
            };
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                let Ok(target) = std::fs::read_link(&path) else {
                    continue;
                };
                let target = target.to_string_lossy().into_owned();
                if let Some(inode) = target
                    .strip_prefix("socket:[")
                    .and_then(|rest| rest.strip_suffix(']'))
                {
                    held.sockets.extend(inode.parse::<u64>());
                } else if target.starts_with("/memfd:") {
                    held.memory
                        .extend(std::fs::metadata(&path).map(|file| file.ino()));
                } else {
                    held.note(&target);
                }
            }
            let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
            maps.lines()
                .filter_map(|line| line.split_whitespace().nth(5))
                .for_each(|path| held.note(path));
        }
        held
    }

    /// Notes a file that could be left behind. One whose name is gone already cannot.
    fn note(&mut self, path: &str) {
        let is_temporary = ["/dev/shm/", "/tmp/", "/var/tmp/"]
            .iter()
            .any(|directory| path.starts_with(directory));
        let is_program = path == env!("CARGO_BIN_EXE_rendez");
        if is_temporary && !is_program && !path.ends_with(" (deleted)") {
            self.files.insert(path.to_owned());
        }
    }

    /// What the kernel still lists of the sockets.
    fn sockets_left(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let inode = |line: &str| {
            line.split_whitespace()
                .nth(6)
                .and_then(|inode| inode.parse().ok())
        };
        let lines = table
            .lines()
            .filter(|line| inode(line).is_some_and(|inode| self.sockets.contains(&inode)));
        lines.map(str::to_owned).collect()
    }
}

/// Processes that map a memory file of these inodes.
fn mappers(inodes: &BTreeSet<u64>) -> Vec<u32> {
    let maps_one = |process: &u32| {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.lines()
            .filter(|line| line.contains("/memfd:"))
            .any(|line| {
                line.split_whitespace()
                    .nth(4)
                    .and_then(|inode| inode.parse().ok())
                    .is_some_and(|i| inodes.contains(&i))
            })
    };
    processes().filter(maps_one).collect()
}

/// Living processes that carry the mark.
fn marked(mark: &str) -> Vec<u32> {
    let carries = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    };
    processes().filter(carries).collect()
}

/// True while threads of a killed process are on their way out of the kernel.
fn is_leaving_still(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let is_alive = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| {
            !rest.trim().is_empty() && !rest.trim_start().starts_with(['Z', 'X'])
        })
    };
    threads.into_iter().any(is_alive)
}

/// The children of a process that have not ended.
fn children(parent: u32) -> Vec<u32> {
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        fields.len() > 1 && fields[0] != "Z" && fields[1] == parent.to_string()
    };
    processes().filter(is_child).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Orphans become this process's children, so that it learns how they ended.
fn adopt_orphans() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap()
    });
}

fn kill(process: u32) {
    // One that has ended already needs no killing.
    if let Some(process) = pid(process) {
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(process as i32)
}

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command
}

fn finished(arguments: &[&str]) -> Output {
    demo(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
