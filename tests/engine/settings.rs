//! Settings that make no sense, by every way they can be given: each is refused by name, with what it may be, and
//! nothing panics or overflows. And `rendez config check`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::ports::free_ports;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rendez::engine::{Config, Engine, SETTINGS, Sources};
use rendez::ground::{Code, Status, catalogue, limits};

/// A field that is a number, how it is set by code, and what it may be: in bytes, in nanoseconds, or as it is.
struct Field {
    key: &'static str,
    set: fn(&mut Config, u64),
    least: u64,
    most: u64,
    /// The most that its type holds.
    widest: u64,
}

const fn field(key: &'static str, set: fn(&mut Config, u64), least: u64, most: u64) -> Field {
    Field {
        key,
        set,
        least,
        most,
        widest: u64::MAX,
    }
}

impl Field {
    const fn of_type(mut self, widest: u64) -> Self {
        self.widest = widest;
        self
    }
}

const U8: u64 = u8::MAX as u64;
const U16: u64 = u16::MAX as u64;
const U32: u64 = u32::MAX as u64;
const TASKS: u64 = limits::CLUSTER_TASKS_MAX as u64;

const DAY: u64 = 86_400_000_000_000;
const TIB: u64 = 1 << 40;
const FIELDS: &[Field] = &[
    field("shards", |c, v| c.shards = v as usize, 0, 64),
    field(
        "arena_segment_bytes",
        |c, v| c.arena.segment_bytes = v as usize,
        4096,
        TIB / 16,
    ),
    field("arena_bytes", |c, v| c.arena.bytes_max = v, 4096, 16 * TIB),
    field("inline_max", |c, v| c.inline_max = v as usize, 64, 4096),
    field("mailbox", |c, v| c.mailbox = v as usize, 2, 1 << 18),
    field("parked_bytes", |c, v| c.parked_bytes = v, 0, 16 * TIB),
    field(
        "parked_bytes_per_step",
        |c, v| c.parked_bytes_per_step = v,
        0,
        16 * TIB,
    ),
    field("landing_bytes", |c, v| c.landing_bytes = v, 0, 16 * TIB),
    field(
        "stage_sampling",
        |c, v| c.stage_sampling = v as usize,
        0,
        u32::MAX as u64,
    ),
    field("recorder_bytes", |c, v| c.recorder_bytes = v, 0, 8 << 20),
    field(
        "connect_timeout",
        |c, v| c.connect_timeout = time(v),
        1_000_000,
        DAY,
    ),
    field(
        "failure_detection",
        |c, v| c.failure_detection = time(v),
        50_000_000,
        DAY,
    ),
    field("spin", |c, v| c.spin = time(v), 0, DAY),
    field("drain_timeout", |c, v| c.drain_timeout = time(v), 0, DAY),
    field(
        "tcp_user_timeout",
        |c, v| c.tcp_user_timeout = time(v),
        1_000_000,
        DAY,
    ),
    field("rank", |c, v| c.rank = Some(v as u32), 0, TASKS - 1).of_type(U32),
    field("world_size", |c, v| c.world_size = Some(v as u32), 1, TASKS).of_type(U32),
    field("port", |c, v| c.port = v as u16, 1, 65_535).of_type(U16),
    field("verbs_port", |c, v| c.verbs.port = Some(v as u32), 1, 255).of_type(U32),
    field(
        "verbs_gid_index",
        |c, v| c.verbs.gid_index = Some(v as u32),
        0,
        255,
    )
    .of_type(U32),
    field("verbs_mtu", |c, v| c.verbs.mtu = Some(v as u32), 256, 4096).of_type(U32),
    field(
        "verbs_pkey_index",
        |c, v| c.verbs.pkey_index = v as u16,
        0,
        65_535,
    )
    .of_type(U16),
    field(
        "verbs_service_level",
        |c, v| c.verbs.service_level = v as u8,
        0,
        15,
    )
    .of_type(U8),
    field(
        "verbs_traffic_class",
        |c, v| c.verbs.traffic_class = v as u8,
        0,
        255,
    )
    .of_type(U8),
    field("verbs_depth", |c, v| c.verbs.depth = v as u16, 32, 128).of_type(U16),
    field(
        "verbs_queue_pairs",
        |c, v| c.verbs.queue_pairs = v as u32,
        1,
        4096,
    )
    .of_type(U32),
    field(
        "verbs_inline_bytes",
        |c, v| c.verbs.inline_bytes = v as u32,
        0,
        4096,
    )
    .of_type(U32),
    field("verbs_timeout", |c, v| c.verbs.timeout = v as u8, 1, 31).of_type(U8),
    field(
        "verbs_retry_count",
        |c, v| c.verbs.retry_count = v as u8,
        0,
        7,
    )
    .of_type(U8),
    field(
        "device_segment_bytes",
        |c, v| c.devices.segment_bytes = v as usize,
        4096,
        TIB / 16,
    ),
    field(
        "device_bytes",
        |c, v| c.devices.bytes_max = v,
        4096,
        16 * TIB,
    ),
    field(
        "device_pinned_bytes",
        |c, v| c.devices.pinned_bytes = v as usize,
        3 << 14,
        TIB / 16,
    ),
];

/// The greatest of numbers is the greatest of times.
fn time(nanos: u64) -> Duration {
    if nanos == u64::MAX {
        Duration::MAX
    } else {
        Duration::from_nanos(nanos)
    }
}

/// Modest, so that many start one after the other.
fn config() -> Config {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores) = (1, true);
    config.arena.segment_bytes = 1 << 20;
    config.verbs.enabled = false;
    config
}

#[track_caller]
fn assert_refused(status: &Status, key: &str) {
    let is_config = (status.code(), status.reason()) == (Code::InvalidArgument, catalogue::CONFIG);
    assert!(is_config, "{key}: {status}");
    let named = format!("{key} = ");
    assert!(status.message().contains(&named), "{key} in {status}");
    assert!(status.message().contains("it should be"), "{status}");
}

#[test]
fn what_code_sets_is_judged_before_anything_is_made_of_it() {
    for field in FIELDS {
        let (least, most, widest) = (field.least, field.most, field.widest);
        let values = [
            0,
            1,
            least,
            most,
            most.saturating_add(1),
            widest / 2,
            widest,
        ];
        for value in values.into_iter().filter(|value| *value <= widest) {
            let mut config = config();
            (field.set)(&mut config, value);
            let checked = config.check();
            match (least..=most).contains(&value) {
                true => assert_eq!(checked, Ok(()), "{} = {value}", field.key),
                false => assert_refused(&checked.unwrap_err(), field.key),
            }
        }
    }
}

#[test]
fn engines_with_extreme_settings_start_or_say_why_not() {
    for Field {
        key,
        set,
        least,
        widest,
        ..
    } in FIELDS
    {
        for value in [0, 1, *least, *widest] {
            let mut config = config();
            set(&mut config, value);
            let checked = config.check();
            match (Engine::start(config), checked) {
                (Err(status), Err(_)) => assert_refused(&status, key),
                (Ok(engine), Ok(())) => engine.shutdown(Duration::ZERO),
                // The machine may have fewer cores, and less memory, than a setting that makes sense wants.
                (Err(status), Ok(())) => {
                    let is_machine = status.reason() != catalogue::CONFIG
                        || !status.message().contains("it should be");
                    assert!(is_machine, "{key} = {value}: {status}");
                }
                (Ok(_), Err(status)) => panic!("{key} = {value} started: {status}"),
            }
        }
    }
}

#[test]
fn the_three_that_were_seen_are_refused_by_name() {
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 6] = [
        ("mailbox", |c| c.mailbox = usize::MAX),
        ("arena_segment_bytes", |c| {
            c.arena.segment_bytes = usize::MAX
        }),
        ("shards", |c| c.shards = 9999),
        ("failure_detection", |c| c.failure_detection = Duration::MAX),
        ("arena_bytes", |c| c.arena.bytes_max = u64::MAX),
        ("connect_timeout", |c| c.connect_timeout = Duration::MAX),
    ];
    for (key, set) in cases {
        let mut config = config();
        set(&mut config);
        let status = Engine::start(config).unwrap_err();
        assert_refused(&status, key);
        assert!(
            status.message().contains("leave it out"),
            "what to do: {status}"
        );
    }
}

#[test]
fn every_number_is_refused_out_of_its_range_by_file_variable_and_flag() {
    for setting in SETTINGS {
        let expects = setting.expects();
        let huge = match () {
            () if expects.starts_with("a number") => "99999999999999999999",
            () if expects.starts_with("bytes") => "9000000GiB",
            () if expects.starts_with("a duration") => "99999999h",
            () => continue,
        };
        let mut config = config();
        let before = setting.show(&config);
        let quoted = format!("{} = \"{huge}\"", setting.key);
        let by_file = config.apply_toml(&quoted, "f.toml").unwrap_err();
        assert!(
            by_file
                .message()
                .starts_with(&format!("f.toml:1: {} = ", setting.key)),
            "{by_file}"
        );
        let by_flag = config.apply_flag(setting, huge).unwrap_err();
        let environment = BTreeMap::from([(setting.variable().to_owned(), huge.to_owned())]);
        let sources = Sources {
            file: Some("/dev/null".into()),
            environment,
            ..Sources::default()
        };
        let by_variable = sources.load().unwrap_err();
        for status in [by_file, by_flag, by_variable] {
            assert_eq!(status.reason(), catalogue::CONFIG);
            assert!(status.message().contains("it should be"), "{status}");
        }
        assert_eq!(
            setting.show(&config),
            before,
            "what is refused changes nothing"
        );
    }
}

/// The command in a directory with `file` as its configuration.
fn rendez(file: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rendez.toml");
    std::fs::write(&path, file).unwrap();
    // Whatever the umask is: one that others may write to is refused.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(arguments)
        .env_clear()
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn both(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr];
    texts.map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn the_command_refuses_them_wherever_it_reads_them() {
    for (line, key) in [
        ("mailbox = 9223372036854775807", "mailbox"),
        (
            "arena_segment_bytes = 9223372036854775807",
            "arena_segment_bytes",
        ),
        ("shards = 9999", "shards"),
    ] {
        for arguments in [&["config", "show"][..], &["config", "check"], &["serve"]] {
            let output = rendez(line, arguments);
            let said = both(&output);
            assert!(
                !output.status.success(),
                "{arguments:?} with {line}: {said}"
            );
            assert!(said.contains(&format!("rendez.toml:1: {key} = ")), "{said}");
            assert!(
                said.contains("it should be") && !said.contains("panicked"),
                "{said}"
            );
        }
    }
}

/// Left out, it would leave the task open.
#[test]
fn the_command_refuses_a_variable_that_is_no_text() {
    let output = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["config", "check", "--offline"])
        .env_clear()
        .env("RENDEZ_CONFIG_FILE", "/dev/null")
        .env("RENDEZ_CLUSTER_SECRET_FILE", OsStr::from_bytes(b"/x\xff"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = both(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("RENDEZ_CLUSTER_SECRET_FILE: its value is not UTF-8"),
        "{said}"
    );
}

#[test]
fn a_configuration_is_checked_for_what_cannot_work() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let base = "shards = 1\nshare_cores = true\ntask = \"/job:a/task:0\"\n";
    let good = format!("{base}listen = \"127.0.0.1:1\"\n[peers]\n\"/job:b/task:0\" = \"{here}\"\n");
    let output = rendez(&good, &["config", "check"]);
    assert!(output.status.success(), "{}", both(&output));
    assert!(
        both(&output).contains("nothing is wrong"),
        "{}",
        both(&output)
    );

    // The listener is gone, and nothing listens at the name of the socket.
    let [gone] = free_ports().map(|port| format!("127.0.0.1:{port}"));
    let name = format!("unix:@rendez-nobody-{}", std::process::id());
    let bad = format!(
        "{base}listen = \"{here}\"\n[peers]\n\"/job:b/task:0\" = \"localhost:{}\"\n\"/job:c/task:0\" = \"{gone}\"\n\
         \"/job:d/task:0\" = \"{name}\"\n\"/job:e/task:0\" = \"127.0.0.1:8\"\n[cluster]\nb = [\"127.0.0.1:8\"]\n",
        here.port()
    );
    let output = rendez(&bad, &["config", "check", "--json"]);
    let said = both(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    for part in [
        "/job:c/replica:0/task:0 is not reached",
        "Connection refused",
        "/job:d/replica:0/task:0 is not reached",
        "have one address",
        "/job:b/replica:0/task:0 and /job:e/replica:0/task:0 (peers)",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let offline = rendez(&bad, &["config", "check", "--offline"]);
    let said = both(&offline);
    assert_eq!(offline.status.code(), Some(78), "{said}");
    assert!(
        said.contains("have one address") && !said.contains("is not reached"),
        "{said}"
    );
}

#[test]
fn a_check_finds_what_a_server_would_refuse() {
    for (flags, said) in [
        (&["--protocol", "pigeon"][..], "protocol: No server factory"),
        (&["--protocol", "grpc+mpi"], "mpirun"),
        (&["--protocol", "tcp", "--require", "shm"], "contradict"),
        (
            &["--root", "127.0.0.1:1", "--rank", "5", "--world-size", "2"],
            "a rank is below the size",
        ),
    ] {
        let arguments = [&["config", "check", "--offline"], flags].concat();
        let output = rendez("shards = 1\nshare_cores = true\n", &arguments);
        let found = both(&output);
        assert_eq!(output.status.code(), Some(78), "{flags:?}: {found}");
        assert!(found.contains(said), "{flags:?}: {found}");
    }
    // What is no duration has its own reason, as everywhere.
    let output = rendez("", &["config", "check", "--patience", "5"]);
    assert!(both(&output).contains("error[DURATION_MALFORMED]"));
    // A file for all ranks leaves the rank open.
    let open = rendez(
        "root = \"127.0.0.1:1\"\n",
        &["config", "check", "--offline"],
    );
    assert!(open.status.success(), "{}", both(&open));
}

/// Files by which a task proves who it is, each by its setting.
struct Proofs {
    folder: tempfile::TempDir,
    texts: BTreeMap<&'static str, String>,
}

impl Proofs {
    fn new() -> Self {
        Self::of(|_| {})
    }

    /// With a certificate of which `change` makes what it likes.
    fn of(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["task".to_owned()]).unwrap();
        change(&mut parameters);
        let certificate = parameters.signed_by(&key, &authority).unwrap();
        let texts = BTreeMap::from([
            ("cluster_secret_file", "0123456789abcdef".repeat(4)),
            ("tls_cert", certificate.pem()),
            ("tls_key", key.serialize_pem()),
            ("tls_ca", authority.pem()),
        ]);
        let proofs = Self {
            folder: tempfile::tempdir().unwrap(),
            texts,
        };
        proofs.write();
        proofs
    }

    fn path(&self, setting: &str) -> PathBuf {
        self.folder.path().join(setting)
    }

    /// All as they should be.
    fn write(&self) {
        for (setting, text) in &self.texts {
            put(&self.path(setting), text);
        }
    }

    fn check(&self, arguments: &[&str]) -> Output {
        let base = "shards = 1\nshare_cores = true\ntask = \"/job:a/task:0\"\n";
        let lines = self.texts.keys().map(|setting| {
            let path = self.path(setting);
            format!("{setting} = \"{}\"\n", path.display())
        });
        rendez(&(base.to_owned() + &lines.collect::<String>()), arguments)
    }

    /// The check finds these settings' files unfit, in this order, says so of each, and nothing of what any holds.
    #[track_caller]
    fn finds(&self, expected: &[(&str, &str)]) {
        let output = self.check(&["config", "check", "--json"]);
        let said = both(&output);
        assert_eq!(output.status.code(), Some(78), "{said}");
        let line = said.lines().find(|line| line.starts_with('{')).unwrap();
        let report: serde_json::Value = serde_json::from_str(line).unwrap();
        let errors = report["errors"].as_array().unwrap();
        assert_eq!(errors.len(), expected.len(), "{said}");
        for (error, (setting, why)) in errors.iter().zip(expected) {
            let problem = error["problem"].as_str().unwrap();
            assert_eq!(error["setting"], *setting, "{said}");
            assert!(problem.contains(why), "{why} in {problem}");
            let path = self.path(setting).display().to_string();
            assert!(problem.contains(&path), "{path} in {problem}");
        }
        let said = said + &both(&self.check(&["config", "check"])) + &both(&self.check(&["serve"]));
        for secret in ["cluster_secret_file", "tls_key"] {
            let line = self.texts[secret].lines().find(|line| !line.contains('-'));
            let line = line.unwrap();
            let numbers = format!("{:?}", line.as_bytes());
            let numbers = numbers.trim_matches(['[', ']']);
            assert!(!said.contains(line) && !said.contains(numbers), "{said}");
        }
    }
}

fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    chmod(path, 0o600);
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_files_of_secret_and_tls_are_checked_and_nothing_of_them_is_printed() {
    let proofs = Proofs::new();
    let good = proofs.check(&["config", "check"]);
    assert!(good.status.success(), "{}", both(&good));

    for secret in ["cluster_secret_file", "tls_key"] {
        chmod(&proofs.path(secret), 0o640);
        proofs.finds(&[(secret, "its mode is 640")]);
        proofs.write();
    }
    for setting in proofs.texts.keys() {
        std::fs::remove_file(proofs.path(setting)).unwrap();
        proofs.finds(&[(setting, "No such file")]);
        proofs.write();
    }
    let one_line = proofs.texts["tls_key"].replace('\n', "");
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    for (setting, text, why) in [
        ("cluster_secret_file", "0123456789abcde", "not 15"),
        (
            "tls_cert",
            "",
            "certificate cannot be used: the file holds none",
        ),
        ("tls_cert", certificate, "certificate cannot be used"),
        (
            "tls_key",
            proofs.texts["tls_ca"].as_str(),
            "key cannot be used: the file holds none",
        ),
        ("tls_key", key, "private key cannot be used"),
        ("tls_key", one_line.as_str(), "private key cannot be used"),
        (
            "tls_ca",
            "no authority",
            "authority cannot be used: the file holds none",
        ),
        ("tls_ca", certificate, "authority cannot be used"),
    ] {
        put(&proofs.path(setting), text);
        proofs.finds(&[(setting, why)]);
        proofs.write();
    }
    // Each is good, and they do not belong together.
    put(&proofs.path("tls_key"), &other_key);
    proofs.finds(&[("tls_cert", "certificate or key cannot be used")]);
    // All that is wrong is found at once.
    for setting in proofs.texts.keys() {
        put(&proofs.path(setting), "?");
    }
    proofs.finds(&[
        ("cluster_secret_file", "not 1;"),
        ("tls_cert", "the file holds none"),
        ("tls_key", "the file holds none"),
        ("tls_ca", "the file holds none"),
    ]);
}

#[test]
fn a_task_of_the_cluster_that_no_other_can_dial_is_found() {
    let output = rendez(
        "shards = 1\nshare_cores = true\ninsecure = true\n[cluster]\nps = [\"127.0.0.1:0\", \"127.0.0.1:1\"]\n",
        &["config", "check", "--offline"],
    );
    let said = both(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("port 0 cannot be dialled"), "{said}");
    let base = "shards = 1\nshare_cores = true\ninsecure = true\n";
    let check = |more: &str| rendez(&(base.to_owned() + more), &["config", "check", "--offline"]);
    let root = check("root = \"127.0.0.1:0\"\nworld_size = 2\nrank = 1\n");
    let said = both(&root);
    assert!(
        said.contains("rank 0 at 127.0.0.1:0: port 0 cannot be dialled"),
        "{said}"
    );
    let alone = check("[cluster]\nps = [\"127.0.0.1:0\"]\n");
    assert_eq!(alone.status.code(), Some(0), "{}", both(&alone));
}

#[test]
fn a_certificate_that_peers_refuse_is_found_before_they_do() {
    let finds = |proofs: &Proofs, code: i32, why: &str| {
        let output = proofs.check(&["config", "check", "--offline"]);
        let said = both(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let found = format!(
            "tls_cert: {}: peers with this `tls_ca` refuse it: ",
            proofs.path("tls_cert").display()
        );
        assert!(said.contains(&found) && said.contains(why), "{why}: {said}");
    };
    let late = Proofs::of(|own| own.not_after = date_time_ymd(2020, 1, 1));
    // A clock may be set, and a certificate made anew, while the task runs.
    finds(&late, 0, "expired");
    let early = Proofs::of(|own| own.not_before = date_time_ymd(2100, 1, 1));
    finds(&early, 0, "not valid yet");
    let foreign = Proofs::new();
    put(&foreign.path("tls_ca"), &late.texts["tls_ca"]);
    finds(&foreign, 78, "; give all tasks one `tls_ca`");
    let one_way =
        Proofs::of(|own| own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    finds(&one_way, 78, "; make one for the authentication of both");
    // A task begins nevertheless, for it may be renewed; and says when its certificate ends.
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores) = (1, true);
    (config.tls_cert, config.tls_key) = (Some(late.path("tls_cert")), Some(late.path("tls_key")));
    config.tls_ca = Some(late.path("tls_ca"));
    let engine = Engine::start(config).unwrap();
    let page = engine.metrics_text().unwrap();
    let ends = "\nrendez_tls_not_after_timestamp_seconds 1577836800\n";
    assert!(page.contains(ends), "{page}");
}
