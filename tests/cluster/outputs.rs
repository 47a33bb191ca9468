//! Files that commands write: who may read them, where they may lie, and what is left of one that was not finished.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rendez_cli::histogram::{HdrLog, Interval, Recorder};
use rustix::process::Signal;

use crate::support::{Place, Process, free_ports, text};

/// The command under a umask.
fn under(place: &Place, umask: &str, arguments: &[&str]) -> Process {
    let usual = place.command(&[]);
    let script = format!("umask {umask}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(usual.get_program())
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    for (name, value) in usual.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    if let Some(directory) = usual.get_current_dir() {
        command.current_dir(directory);
    }
    Process::start(command)
}

/// Regular files of a folder with their modes, in order.
fn modes(folder: &Path, ending: &str) -> Vec<(String, u32)> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.path().to_string_lossy().ends_with(ending))
        .map(|entry| {
            let found = fs::symlink_metadata(entry.path()).expect("it is there");
            assert!(found.is_file(), "{}", entry.path().display());
            (
                entry.file_name().to_string_lossy().into_owned(),
                found.mode() & 0o7777,
            )
        })
        .collect();
    found.sort();
    found
}

#[test]
fn recordings_are_for_their_owner_whatever_the_umask_and_whatever_was_planted() {
    const NAME: &str = "rendez-job-a-replica-0-task-0";
    for umask in ["000", "022", "077", "0777"] {
        let place = Place::new();
        let victim = place.file("victim", "untouched");
        let [recorders, fetched] = ["recorders", "fetched"].map(|name| {
            let folder = victim.with_file_name(name);
            fs::create_dir(&folder).expect("made");
            folder
        });
        let [port] = free_ports();
        let cluster = format!("a=127.0.0.1:{port}");
        let serve = under(
            &place,
            umask,
            &[
                "serve",
                "--cluster",
                &cluster,
                "--job",
                "a",
                "--task",
                "0",
                "--recorder-dir",
                text(&recorders),
            ],
        );
        serve.await_said("at rendez://");
        let live = modes(&recorders, "-0.rdz");
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].1, 0o600, "{umask}: {live:?}");

        // Where its files will lie, another user has put links to a file of the user.
        let stem = live[0].0.trim_end_matches(".rdz");
        for end in ["asked.rdz", "asked.part"] {
            symlink(&victim, recorders.join(format!("{stem}-{end}"))).expect("made");
        }
        // A link where a copy is to lie is not followed, and the copy refused; without it there is one.
        serve.signal(Signal::USR1);
        serve.await_said("not recorded: ");
        for entry in fs::read_dir(&recorders).expect("a folder").flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                fs::remove_file(entry.path()).expect("removed");
            }
        }
        for _ in 0..2 {
            serve.signal(Signal::USR1);
        }
        serve.await_said("\nrecorded: ");
        let copies = modes(&recorders, "-asked.rdz");
        assert_eq!(copies.len(), 1, "{copies:?}");
        assert_eq!(copies[0].1, 0o600, "{umask}: {copies:?}");

        // What was fetched, and the timeline of it.
        let planted = fetched.join(format!("{NAME}-shard-0.rdz"));
        symlink(&victim, &planted).expect("made");
        let trace = fetched.join("out.json");
        let dump = [
            "dump",
            "--cluster",
            &cluster,
            "--out",
            text(&fetched),
            "--trace",
            text(&trace),
        ];
        let refused = under(&place, umask, &dump).finish();
        refused.refused(1, "FILE_UNWRITABLE", &["shard-0.rdz", "no regular file"]);
        fs::remove_file(&planted).expect("removed");
        under(&place, umask, &dump).finish().well();
        assert_eq!(
            modes(&fetched, ".rdz"),
            [(format!("{NAME}-shard-0.rdz"), 0o600)]
        );
        assert_eq!(modes(&fetched, ".json").len(), 1);
        assert_eq!(modes(&fetched, ".json")[0].1 & 0o177, 0, "{umask}");
        assert_eq!(fs::read(&victim).expect("it is there"), b"untouched");
        serve.stop().well();
    }
}

fn log(place: &Place) -> String {
    let path = place.file("a.hlog", "");
    let mut log = HdrLog::create(&path, "times").expect("writable");
    let mut recorder = Recorder::nanos();
    (1..=1000).for_each(|time| recorder.record(time * 10));
    let interval = Interval {
        tag: "pingpong-shm-4".into(),
        start: std::time::SystemTime::now(),
        duration: std::time::Duration::from_secs(1),
        recorder,
    };
    log.write(&interval).expect("written");
    text(&path).to_owned()
}

#[test]
fn other_files_go_by_the_umask_and_keep_the_mode_they_had() {
    let place = Place::new();
    let log = log(&place);
    for (umask, wanted) in [
        ("000", 0o666),
        ("022", 0o644),
        ("027", 0o640),
        ("077", 0o600),
    ] {
        let page = format!("page-{umask}.html");
        let report = ["report", &*log, "--html", &page];
        under(&place, umask, &report).finish().well();
        let path = Path::new(&log).with_file_name(&page);
        let mode = || fs::metadata(&path).expect("it is there").mode() & 0o7777;
        assert_eq!(mode(), wanted, "{umask}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).expect("set");
        under(&place, umask, &report).finish().well();
        assert_eq!(mode(), 0o604, "{umask}");
    }
}

#[test]
fn what_cannot_be_written_is_told_before_there_is_work() {
    let place = Place::new();
    let log = log(&place);
    // Neither the log nor the graph is there: that the output cannot be written is told first.
    for arguments in [
        &["report", "absent.hlog", "--html", "absent/page.html"][..],
        &["report", "absent.hlog", "--html", "/dev"],
        &["run", "absent.pb", "--out", "y=absent/y.npy"],
        &["dump", "absent.rdz", "--trace", "absent/out.json"],
        &["dump", "unix:@absent", "--out", "absent"],
        &["bench", "--html", "absent/page.html"],
        &["train", "digits", "--checkpoint", "a.hlog/folder"],
    ] {
        let ended = place.run(arguments);
        ended.refused(1, "FILE_UNWRITABLE", &[]);
    }
    // A device is written through, and stays one.
    place.run(&["report", &log, "--html", "/dev/null"]).well();
    let full = place.run(&["report", &log, "--html", "/dev/full"]);
    full.refused(1, "FILE_UNWRITABLE", &["No space left"]);
    let page = place.run(&["report", &log, "--html", "/dev/stdout"]).well();
    assert!(page.said.contains("</html>"), "{}", page.said);
}

#[test]
fn a_bench_that_is_refused_leaves_the_log_of_the_run_before() {
    let place = Place::new();
    let log = log(&place);
    let before = fs::read(&log).expect("readable");
    for (arguments, reason) in [
        (["--compare", "absent.json"], "FILE_UNREADABLE"),
        (["--html", "absent/page.html"], "FILE_UNWRITABLE"),
    ] {
        let bench = [&["bench", "--hdr-log", &log][..], &arguments].concat();
        place.run(&bench).refused(1, reason, &["absent"]);
        assert_eq!(fs::read(&log).expect("readable"), before, "{arguments:?}");
    }
}

#[test]
fn a_mounted_file_keeps_what_it_holds_until_there_is_something_to_write() {
    let place = Place::new();
    let log = log(&place);
    let [below, over] = ["below", "page.html"].map(|name| place.file(name, "what was there"));
    let script = "mount --bind below page.html && exec \"$0\" \"$@\"";
    let report = |log: &str| {
        let command = place.command(&["report", log, "--html", "page.html"]);
        let mut mounted = Command::new("unshare");
        mounted
            .args(["-m", "sh", "-c", script])
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir(below.parent().expect("a folder"));
        Process::start(mounted).finish()
    };
    let unshared = Command::new("unshare").args(["-m", "true"]).status();
    if !rustix::process::geteuid().is_root() || !unshared.is_ok_and(|ended| ended.success()) {
        crate::skipped::skipped("only root mounts a file");
        return;
    }
    let refused = report("absent.hlog");
    refused.refused(1, "FILE_UNREADABLE", &["absent.hlog"]);
    assert_eq!(fs::read(&below).expect("readable"), b"what was there");
    report(&log).well();
    let page = fs::read_to_string(&below).expect("readable");
    assert!(
        page.starts_with('<') && page.trim_end().ends_with("</html>"),
        "{page}"
    );
    assert_eq!(fs::read(&over).expect("readable"), b"what was there");
}
