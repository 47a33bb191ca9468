//! Settings: every row of the table by each way it can be given, which source wins, and what is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::sources::FILE_VARIABLE;
use super::*;

/// A value of each setting that is not its default, as a file would have it.
const OTHERS: &[(&str, &str)] = &[
    ("task", "\"/job:w/task:3\""),
    ("listen", "\"unix:@x\""),
    ("peers", "{ \"/job:a/replica:0/task:0\" = \"unix:@a\" }"),
    ("shards", "2"),
    ("cores", "[0, 3]"),
    ("share_cores", "true"),
    ("poll", "\"park\""),
    ("spin", "\"2ms\""),
    ("drive", "\"thread\""),
    ("runtime", "\"poll\""),
    ("huge_pages", "\"off\""),
    ("arena_segment_bytes", "\"4MiB\""),
    ("arena_bytes", "\"1GiB\""),
    ("lease", "false"),
    ("inline_max", "100"),
    ("mailbox", "7"),
    ("parked_bytes", "\"64KiB\""),
    ("parked_bytes_per_step", "\"32KiB\""),
    ("landing_bytes", "12345"),
    ("stage_sampling", "8"),
    ("recorder_bytes", "\"64KiB\""),
    ("recorder_dir", "\"/run/rendez\""),
    ("metrics", "\"127.0.0.1:9464\""),
    ("metrics_any_user", "true"),
    ("metrics_peers", "false"),
    ("connect_timeout", "\"50ms\""),
    ("cluster", "\"ps=a:1;worker=b:2,7@[::1]:2\""),
    ("root", "\"h:1\""),
    ("rank", "1"),
    ("world_size", "3"),
    ("port", "4000"),
    ("subdomain", "\"trainers\""),
    ("protocol", "\"grpc+verbs\""),
    ("require", "\"tcp\""),
    ("cluster_secret_file", "\"/run/secret\""),
    ("cluster_secret_fd", "3"),
    ("files_root", "\"/srv/models\""),
    ("tls_cert", "\"c.pem\""),
    ("tls_key", "\"k.pem\""),
    ("tls_ca", "\"a.pem\""),
    ("tls_kernel", "false"),
    ("insecure", "true"),
    ("failure_detection", "\"1500ms\""),
    ("drain_timeout", "\"0s\""),
    ("tcp_user_timeout", "\"1ms\""),
    ("verbs", "false"),
    ("verbs_in_clear", "true"),
    ("verbs_device", "\"mlx5_0,mlx5_1\""),
    ("verbs_port", "2"),
    ("verbs_gid_index", "3"),
    ("verbs_mtu", "1024"),
    ("verbs_pkey_index", "1"),
    ("verbs_service_level", "5"),
    ("verbs_traffic_class", "106"),
    ("verbs_depth", "64"),
    ("verbs_queue_pairs", "8"),
    ("verbs_inline_bytes", "128"),
    ("verbs_timeout", "16"),
    ("verbs_retry_count", "7"),
    ("devices", "\"auto\""),
    ("device_library", "\"/opt/driver/libcuda.so.1\""),
    ("device_segment_bytes", "\"1MiB\""),
    ("device_bytes", "\"1GiB\""),
    ("device_pinned_bytes", "\"1MiB\""),
];

/// As a variable or a flag has it.
fn bare(value: &str) -> String {
    match value {
        "[0, 3]" => "0,3".into(),
        "{ \"/job:a/replica:0/task:0\" = \"unix:@a\" }" => "/job:a/task:0=unix:@a".into(),
        other => other.trim_matches('"').to_owned(),
    }
}

fn default_config() -> Config {
    Config::default()
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    pairs.iter().map(owned).collect()
}

#[test]
fn every_setting_is_read_from_each_layer_and_shown_as_it_is_read() {
    let rows: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    assert_eq!(rows.len(), SETTINGS.len(), "a key stands once");
    assert_eq!(
        rows,
        OTHERS.iter().map(|(key, _)| *key).collect(),
        "all are tested"
    );
    for (key, value) in OTHERS {
        let setting = Setting::find(key).unwrap();
        let line = format!("{key} = {value}");
        let default = default_config();
        assert_ne!(setting.show(&default), *value, "{key}");
        assert_eq!(default.origin(setting), Origin::Default);

        let mut by_file = default_config();
        by_file
            .apply_toml(&format!("\n{line}\n"), "f.toml")
            .unwrap();
        assert_eq!(setting.show(&by_file), *value, "{key}");
        assert_eq!(by_file.origin(setting).to_string(), "f.toml:2");

        let mut by_variable = default_config();
        let name = setting.variable();
        by_variable
            .apply_env(|asked| (asked == name).then(|| bare(value)))
            .unwrap();
        assert_eq!(setting.show(&by_variable), *value, "{key}");
        assert_eq!(
            by_variable.origin(setting),
            Origin::Variable(name.to_owned())
        );

        let mut by_flag = default_config();
        by_flag.apply_flag(setting, &bare(value)).unwrap();
        assert_eq!(setting.show(&by_flag), *value, "{key}");
        assert_eq!(
            by_flag.origin(setting).to_string(),
            format!("--{}", key.replace('_', "-"))
        );

        // What is shown can be read.
        let shown = setting.show(&default);
        if !shown.is_empty() {
            let mut again = default_config();
            again
                .apply_toml(&format!("{key} = {shown}"), "f.toml")
                .unwrap();
            assert_eq!(setting.show(&again), shown);
        }
    }
}

#[test]
fn the_variables_that_were_there_keep_their_names() {
    for name in [
        "TASK",
        "LISTEN",
        "SHARDS",
        "POLL",
        "HUGE_PAGES",
        "CLUSTER_SECRET_FILE",
    ] {
        let name = format!("RENDEZ_{name}");
        assert!(
            SETTINGS.iter().any(|setting| setting.variable() == name),
            "{name}"
        );
    }
}

#[test]
fn flags_beat_variables_beat_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(
        &path,
        "shards = 1\nmailbox = 10\npoll = \"park\"\n[cluster]\nps = [\"a:1\"]\n",
    )
    .unwrap();
    let sources = Sources {
        file: Some(path.clone()),
        flags: vec![("shards", "3".into())],
        environment: environment(&[
            ("RENDEZ_SHARDS", "2"),
            ("RENDEZ_MAILBOX", "20"),
            ("RENDEZ_POLL", ""),
            ("RENDEZ_CONFIG_FILE", "/nowhere"),
            ("RENDEZ_LIBRARY", "/nowhere/librendez_c.so"),
            ("RENDEZ_SHARD", "5"),
            ("RENDEZ_BOGUS", "5"),
            ("RENDEZ_TEST_ROLE", "child"),
            ("SHARDS", "9"),
        ]),
        ..Sources::default()
    };
    let loaded = sources.load().unwrap();
    let config = &loaded.config;
    assert_eq!(
        (config.shards, config.mailbox, config.poll),
        (3, 20, PollPolicy::Park)
    );
    let origin = |key: &str| config.origin(Setting::find(key).unwrap()).to_string();
    assert_eq!(origin("shards"), "--shards");
    assert_eq!(origin("mailbox"), "RENDEZ_MAILBOX");
    assert_eq!(origin("poll"), format!("{}:3", path.display()));
    assert_eq!(origin("lease"), "default");
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("BOGUS") && loaded.warnings[0].contains("config show"));
    assert!(
        loaded.warnings[1].contains("RENDEZ_SHARD ")
            && loaded.warnings[1].contains("`RENDEZ_SHARDS`")
    );

    let resolved = crate::cluster::resolve(&loaded.surroundings().unwrap()).unwrap();
    assert_eq!(resolved.source, crate::cluster::Source::File);
    assert_eq!(resolved.task.to_string(), "/job:ps/replica:0/task:0");
}

#[test]
fn a_service_of_kubernetes_is_warned_of_and_sets_nothing() {
    let load = |port: &str, more: &[(&str, &str)]| {
        let mut environment = environment(&[
            ("RENDEZ_CONFIG_FILE", "/dev/null"),
            ("RENDEZ_PORT", port),
            ("RENDEZ_PORT_29700_TCP_PORT", "29700"),
        ]);
        environment.extend(more.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())));
        let sources = Sources {
            environment,
            ..Sources::default()
        };
        sources.load()
    };
    let link = "tcp://10.96.3.4:29700";
    let service = [
        ("RENDEZ_SERVICE_HOST", "10.96.3.4"),
        ("RENDEZ_SERVICE_PORT", "29700"),
    ];
    let loaded = load(link, &service).unwrap();
    assert_eq!(loaded.config.port, limits::TASK_PORT);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    for part in ["RENDEZ_PORT=tcp://10.96.3.4:29700", "enableServiceLinks"] {
        assert!(loaded.warnings[0].contains(part), "{:?}", loaded.warnings);
    }
    assert_eq!(load("31000", &service).unwrap().config.port, 31000);
    for (port, more) in [(link, &[][..]), ("x", &service)] {
        let status = load(port, more).unwrap_err();
        let text = format!("RENDEZ_PORT={port}: ");
        assert!(status.message().starts_with(&text), "{status}");
    }
}

#[test]
fn flags_reach_the_resolvers() {
    let sources = Sources {
        file: None,
        flags: vec![
            ("cluster", "ps=a:1,b:1".into()),
            ("task", "/job:ps/task:1".into()),
        ],
        environment: environment(&[
            ("RENDEZ_CONFIG_FILE", "/dev/null"),
            ("RENDEZ_CLUSTER", "x=y:1"),
        ]),
        ..Sources::default()
    };
    let surroundings = sources.load().unwrap().surroundings().unwrap();
    let resolved = crate::cluster::resolve(&surroundings).unwrap();
    assert_eq!(resolved.address().unwrap().host(), "b");
    assert!(surroundings.host_name.is_some());
}

#[test]
fn what_the_program_sets_is_its_own() {
    let setting = Setting::find("shards").unwrap();
    let mut config = default_config();
    config.shards = 5;
    assert_eq!(config.origin(setting), Origin::Code);
    config.apply_toml("shards = 2", "f").unwrap();
    assert_ne!(config.origin(setting), Origin::Code);
    config.shards = 5;
    assert_eq!(config.origin(setting), Origin::Code);
    let mut server = default_config();
    assert_eq!(server.beyond_an_engine().count(), 0);
    let text =
        "protocol = \"tcp\"\ndrain_timeout = \"1s\"\ninsecure = true\n[cluster]\nps = [\"a:1\"]";
    server.apply_toml(text, "f").unwrap();
    assert_eq!(
        server
            .beyond_an_engine()
            .map(|(setting, _)| setting.key)
            .collect::<Vec<_>>(),
        ["cluster", "protocol"],
        "an engine alone does without them, and without no other"
    );
}

#[test]
fn wrong_values_say_where_and_what_would_be_right() {
    for (text, parts) in [
        (
            "shardz = 2",
            &["f.toml:1", "`shardz`", "did you mean `shards`?"][..],
        ),
        (
            "\n\nconnect_timeout_ms = 7",
            &["f.toml:3", "`connect_timeout`?"],
        ),
        ("xyzzy = 2", &["`xyzzy`", "config show"]),
        ("shards = -1", &["f.toml:1: shards = -1", "a number"]),
        ("shards = 1.5", &["a number"]),
        ("shards = \"+1\"", &["a number"]),
        ("lease = 1", &["true or false"]),
        ("poll = \"often\"", &["adaptive, busy or park"]),
        ("poll = 1", &["adaptive, busy or park"]),
        ("require = \"udp\"", &["none, shm, ", "toy or tcp"]),
        ("connect_timeout = 10", &["a duration with its unit"]),
        ("connect_timeout = \"10\"", &["DURATION_MALFORMED"]),
        ("parked_bytes = \"4 parsecs\"", &["SIZE_MALFORMED", "64KiB"]),
        ("parked_bytes = -1", &["bytes"]),
        ("cores = [0, \"x\"]", &["numbers of cores"]),
        ("cores = \"3-99999999\"", &["numbers of cores"]),
        ("cores = \"0,3-1\"", &["3-1 runs backwards"]),
        (
            "listen = \"nowhere\"",
            &["listen = \"nowhere\"", "host:port", "unix:"],
        ),
        ("peers = { a = 7 }", &["a: no text"]),
        (
            "peers = \"/job:a/task:0=unix:@1,/job:a/replica:0/task:0=unix:@2\"",
            &["/job:a/replica:0/task:0", "twice"],
        ),
        ("[peers]\n\"/job:a/task:0\" = \"x\"", &["/job:a/task:0"]),
        ("[cluster]\nps = [\"a\"]", &["\"a\" as a host-port pair."]),
        ("root = \"a\"", &["\"a\" as a host-port pair."]),
        ("port = 70000", &["port = 70000", "a number"]),
        ("tls_key = \"\"", &["a path"]),
        ("shards = 1\nshards = 2", &["f.toml", "duplicate"]),
        ("[shards", &["f.toml"]),
    ] {
        let status = default_config().apply_toml(text, "f.toml").unwrap_err();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::InvalidArgument, catalogue::CONFIG)
        );
        for part in parts {
            assert!(status.message().contains(part), "{part} in {status}");
        }
    }
    let status = default_config()
        .apply_env(|name| (name == "RENDEZ_PEERS").then(|| "x".into()))
        .unwrap_err();
    assert!(
        status.message().starts_with("RENDEZ_PEERS=x: it should be"),
        "{status}"
    );
    let missing = Sources {
        file: Some("/nowhere/c.toml".into()),
        ..Sources::default()
    };
    let status = missing.load().unwrap_err();
    assert!(
        status.message().contains("cannot read /nowhere/c.toml"),
        "{status}"
    );
    let endless = Sources {
        file: Some("/dev/zero".into()),
        ..Sources::default()
    };
    assert!(
        endless
            .load()
            .unwrap_err()
            .message()
            .contains("CLUSTER_TEXT_BYTES_MAX")
    );
}

/// What is found may lie in a folder of another user, and can name a library that is loaded.
#[test]
fn a_file_that_is_found_is_this_users_or_roots_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".config/rendez/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "mailbox = 7").unwrap();
    let path = file.to_str().unwrap();
    let load = |variable: &str, value: &str| {
        let sources = Sources {
            environment: environment(&[(variable, value)]),
            ..Sources::default()
        };
        sources.load().map(|loaded| loaded.config.mailbox)
    };
    let found = || load("HOME", home.path().to_str().unwrap());
    let set = |mode: u32| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    let owner = std::fs::metadata(&file).unwrap().uid();
    let refused = |owner: u32, mode: &str, mend: &str| {
        let status = found().unwrap_err();
        assert_eq!(status.reason(), catalogue::CONFIG);
        for part in [path, &format!("user {owner},"), mode, mend, FILE_VARIABLE] {
            assert!(status.message().contains(part), "{part} in {status}");
        }
        assert_eq!(load(FILE_VARIABLE, path).unwrap(), 7, "it was named");
    };
    for mode in [0o666, 0o602] {
        set(mode);
        refused(owner, &format!("mode {mode:03o}"), "chmod go-w");
    }
    set(0o644);
    assert_eq!(found().unwrap(), 7);
    // Only root can give a file away, and only to users that there are in its namespace.
    let given = std::os::unix::fs::chown(&file, Some(owner), Some(12_345));
    if rustix::process::geteuid().is_root() && given.is_ok() {
        set(0o664);
        refused(owner, "mode 664", "chmod go-w");
        set(0o644);
        std::os::unix::fs::chown(&file, Some(12_345), None).unwrap();
        refused(12_345, "mode 644", &format!("chown it to user {owner}"));
    }
}

/// It may be what keeps others out.
#[test]
fn a_file_that_cannot_be_looked_at_is_not_taken_for_absent() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".config/rendez/config.toml");
    let load = || {
        let sources = Sources {
            environment: environment(&[("HOME", home.path().to_str().unwrap())]),
            ..Sources::default()
        };
        sources.load()
    };
    load().expect("there is none");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let status = load().unwrap_err();
    assert_eq!(status.reason(), catalogue::CONFIG);
    for part in [file.to_str().unwrap(), FILE_VARIABLE] {
        assert!(status.message().contains(part), "{part} in {status}");
    }
}

#[test]
fn peers_of_several_layers_come_together() {
    let mut config = default_config();
    config
        .apply_toml("[peers]\na = \"unix:@1\"\nb = \"unix:@2\"", "f")
        .unwrap();
    let more = "b=unix:@3, c=unix:@4";
    config
        .apply_env(|name| (name == "RENDEZ_PEERS").then(|| more.into()))
        .unwrap();
    let peers: Vec<String> = config
        .peers
        .iter()
        .map(|(task, at)| format!("{task}={at}"))
        .collect();
    assert_eq!(peers, ["a=unix:@1", "b=unix:@3", "c=unix:@4"]);
    let [short, full] = ["/job:a/task:0", "/job:a/replica:0/task:0"];
    for (first, second) in [(short, full), (full, short)] {
        let mut spelled = default_config();
        let file = format!("[peers]\n\"{first}\" = \"unix:@old\"");
        spelled.apply_toml(&file, "f").unwrap();
        let variable = format!("{second}=unix:@new");
        spelled
            .apply_env(|name| (name == "RENDEZ_PEERS").then(|| variable.clone()))
            .unwrap();
        let new = "unix:@new".parse().unwrap();
        assert_eq!(spelled.peers, BTreeMap::from([(full.to_owned(), new)]));
    }
    let mut cores = default_config();
    cores
        .apply_env(|name| (name == "RENDEZ_CORES").then(|| "0,2-4".into()))
        .unwrap();
    assert_eq!(cores.cores, [0, 2, 3, 4]);
}

#[test]
fn the_reference_page_is_that_of_the_table() {
    assert!(
        include_str!("../METRICS.md") == crate::engine::metrics::reference_page(),
        "METRICS.md is stale: write it anew with `rendez config metrics > src/rendez/engine/METRICS.md`"
    );
    assert!(
        include_str!("../CONFIG.md") == reference_page().replace("verbs, toy or", "verbs or"),
        "CONFIG.md is stale: write it anew with `rendez config reference > src/rendez/engine/CONFIG.md`"
    );
}

/// What a shard's errors tell their reader to raise, a file can set.
#[test]
fn errors_name_settings_that_there_are() {
    let core = concat!(env!("CARGO_MANIFEST_DIR"), "/../core");
    let texts = ["ground/faults.rs", "rendezvous/refusal.rs"]
        .map(|file| std::fs::read_to_string(format!("{core}/{file}")).unwrap());
    for text in &texts {
        let named: Vec<_> = ["raise `", "set by `"]
            .iter()
            .flat_map(|said| text.split(said).skip(1))
            .filter_map(|rest| rest.split('`').next())
            .collect();
        assert!(!named.is_empty(), "this looks where no setting is named");
        for key in named {
            assert!(Setting::find(key).is_some(), "`{key}` is no setting");
        }
    }
}

#[test]
fn a_task_that_names_none_is_told_with_its_setting() {
    let status = crate::engine::Engine::start(Config::new("worker")).unwrap_err();
    assert_eq!(status.reason(), catalogue::DEVICE_MALFORMED);
    assert!(
        status.message().starts_with("task = \"worker\": "),
        "{status}"
    );
}

#[test]
fn a_check_judges_the_names_of_tasks() {
    for (line, said) in [
        ("task = \"worker\"", "task = \"worker\": "),
        ("peers = { server = \"unix:@s\" }", "peers = \"server\": "),
    ] {
        let mut config = default_config();
        config.apply_toml(line, "f.toml").unwrap();
        let status = config.check().unwrap_err();
        assert_eq!(status.reason(), catalogue::DEVICE_MALFORMED, "{line}");
        assert!(status.message().starts_with(said), "{status}");
    }
    let mut wrong = default_config();
    let line = "peers = { server = \"unix:@s\", other = \"unix:@o\" }";
    wrong.apply_toml(line, "f.toml").unwrap();
    let status = wrong.check().unwrap_err();
    for said in ["peers = \"server\": ", "peers = \"other\": "] {
        assert!(status.message().contains(said), "{status}");
    }
    let mut shared = default_config();
    let own = (shared.task.clone(), "unix:@own".parse().unwrap());
    shared.peers.extend([own]);
    shared.check().expect("a list that all tasks share");
}

/// Left out, a secret's file would leave the task open.
#[test]
fn a_variable_of_ours_that_is_no_text_is_an_error() {
    let load = |name: &str| {
        let sources = Sources {
            file: Some("/dev/null".into()),
            unreadable: vec![name.into()],
            ..Sources::default()
        };
        sources.load()
    };
    for name in ["RENDEZ_CLUSTER_SECRET_FILE", "RENDEZ_CONFIG_FILE"] {
        let status = load(name).unwrap_err();
        assert_eq!(status.reason(), catalogue::CONFIG);
        assert!(status.message().starts_with(name), "{status}");
    }
    for name in ["LS_COLORS", "RENDEZ_TEST_ROLE"] {
        load(name).unwrap();
    }
}

#[test]
fn variables_of_another_system_are_read_where_a_setting_does_their_work() {
    let load = |pairs: &[(&str, &str)]| {
        let sources = Sources {
            environment: environment(pairs),
            ..Sources::default()
        };
        sources.load()
    };
    let loaded = load(&[
        ("RDMA_DEVICE", "mlx5_1"),
        ("RDMA_DEVICE_PORT", "2"),
        ("RDMA_GID_INDEX", "3"),
        ("RDMA_QP_PKEY_INDEX", "1"),
        ("RDMA_QP_QUEUE_DEPTH", "1024"),
        ("RDMA_QP_TIMEOUT", "16"),
        ("RDMA_QP_RETRY_COUNT", "7"),
        ("RDMA_QP_SL", "4"),
        ("RDMA_QP_MTU", "2048"),
        ("RDMA_TRAFFIC_CLASS", "106"),
        ("RDMA_QP_SLL", "1"),
    ])
    .unwrap();
    let verbs = &loaded.config.verbs;
    let path = verbs.path("mlx5_1");
    assert_eq!(verbs.devices(), ["mlx5_1"]);
    assert_eq!(
        (path.port, path.gid_index, path.mtu),
        (Some(2), Some(3), Some(2048))
    );
    assert_eq!(
        (path.pkey_index, path.service_level, path.traffic_class),
        (1, 4, 106)
    );
    let port = verbs.port();
    assert_eq!(
        (
            port.window,
            port.patience.timeout,
            port.patience.retry_count
        ),
        (128, 16, 7)
    );
    let setting = Setting::find("verbs_mtu").unwrap();
    assert_eq!(
        loaded.config.origin(setting),
        Origin::Variable("RDMA_QP_MTU".into())
    );
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("RDMA_QP_QUEUE_DEPTH is 1024, and is taken as 128"));
    assert!(
        loaded.warnings[1].contains("RDMA_QP_SLL is ignored")
            && loaded.warnings[1].contains("`RDMA_QP_SL`"),
        "{:?}",
        loaded.warnings
    );

    // What its code really read beats what its documentation says; ours beats both.
    let both = [
        ("RDMA_QP_SL", "1"),
        ("RDMA_SL", "2"),
        ("RDMA_MTU", "512"),
        ("RENDEZ_VERBS_MTU", "256"),
    ];
    let loaded = load(&both).unwrap();
    assert_eq!(loaded.config.verbs.service_level, 2);
    assert_eq!(loaded.config.verbs.mtu, Some(256));
    assert!(loaded.warnings.is_empty());

    let status = load(&[("RDMA_TIMEOUT", "soon")]).unwrap_err();
    assert!(status.message().contains("RDMA_TIMEOUT=soon"), "{status}");
}

#[test]
fn settings_of_rdma_are_judged_before_there_is_a_device() {
    for line in [
        "verbs_port = 0",
        "verbs_gid_index = 256",
        "verbs_mtu = 1500",
        "verbs_service_level = 16",
        "verbs_depth = 31",
        "verbs_depth = 129",
        "verbs_queue_pairs = 0",
        "verbs_timeout = 0",
        "verbs_retry_count = 8",
    ] {
        let mut config = default_config();
        let read = config.apply_toml(line, "f.toml");
        let status = read.and_then(|()| config.check()).unwrap_err();
        let key = line.split(' ').next().unwrap();
        assert!(status.message().contains(key), "{line}: {status}");
    }
}

/// The table of the failure model, in microseconds.
#[test]
fn a_loss_is_told_within_the_fractions_of_the_failure_model() {
    for (detection, table) in [
        (300, [37_500, 187_500, 375_000]),
        (2_000, [250_000, 1_250_000, 2_500_000]),
    ] {
        let mut config = default_config();
        config.failure_detection = Duration::from_millis(detection);
        let times = [
            config.ask_every(),
            config.lost_after(),
            config.given_up_after(),
        ];
        assert_eq!(times.map(|time| time.as_micros()), table);
        assert!(config.given_up_after() < config.failure_detection * 3 / 2);
    }
}

#[test]
fn a_visitor_reserves_little() {
    let [visitor, task] = [super::super::OBSERVER_JOB, "a"].map(|job| {
        let config = Config::new(format!("/job:{job}/task:0"));
        config.shard_settings(1).table
    });
    assert_eq!(16 * visitor.records, task.records);
    assert_eq!(visitor.waiters, visitor.values);
    assert_eq!(16 * visitor.values, task.values);
}
