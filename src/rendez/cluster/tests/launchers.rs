//! Every launcher's own environment, and the order among them.

use super::*;

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/data/launchers/", $name, ".env"))
    };
}

#[test]
fn torchrun_tells_rank_and_root() {
    let resolved = resolve(&of_sample(sample!("torchrun"))).unwrap();
    assert_eq!(resolved.source, Source::Torchrun);
    // One beside torchrun's own store, which is at work there.
    assert_eq!(root(&resolved), ("node-a.cluster.local:29501".into(), 5, 8));
    assert_eq!(resolved.task.to_string(), "/job:worker/replica:0/task:5");
    // The agents of several machines count restarts each for itself.
    let epoch = resolved.epoch.clone().unwrap();
    assert_eq!((epoch.run.as_str(), epoch.restart), ("b2c7a1de-42", 0));
    let local = resolved.local.unwrap();
    assert_eq!((local.rank, local.size), (1, Some(4)));
    assert_eq!(resolved.address(), None, "rank 5 picks its own");
    assert!(resolved.notes.iter().any(|note| note.contains("29501")));

    let mut first = of_sample(sample!("torchrun"));
    first.environment.insert("RANK".into(), "0".into());
    first
        .environment
        .insert("RENDEZ_ROOT".into(), "[fd00::1]:4000".into());
    let resolved = resolve(&first).unwrap();
    assert_eq!(root(&resolved), ("[fd00::1]:4000".into(), 0, 8));
    assert_eq!(resolved.address().unwrap().host(), "fd00::1");
}

#[test]
fn restarts_tell_lives_apart_where_one_agent_counts_them() {
    let restart = |machines: Option<&str>| {
        let mut sample = of_sample(sample!("torchrun"));
        sample.environment.remove("GROUP_WORLD_SIZE");
        if let Some(machines) = machines {
            let machines = ("GROUP_WORLD_SIZE".to_owned(), machines.to_owned());
            sample.environment.extend([machines]);
        }
        resolve(&sample).unwrap().epoch.unwrap().restart
    };
    assert_eq!([Some("1"), Some("2"), None].map(restart), [1, 0, 0]);
}

#[test]
fn tf_config_tells_all() {
    let resolved = resolve(&of_sample(sample!("tf_config_chief"))).unwrap();
    assert_eq!(resolved.source, Source::TfConfig);
    assert_eq!(resolved.task.to_string(), "/job:worker/replica:0/task:1");
    assert_eq!(known(&resolved).len(), 5);
    let address = resolved.address().unwrap();
    assert_eq!(address.to_string(), "mnist-worker-1.kubeflow.svc:2222");
    assert_eq!(resolved.epoch, None);
    assert!(
        resolved
            .notes
            .iter()
            .any(|note| note.contains("environment"))
    );

    let resolved = resolve(&of_sample(sample!("tf_config_master"))).unwrap();
    assert_eq!(resolved.task.to_string(), "/job:master/replica:0/task:0");
    let workers: Vec<u32> = known(&resolved)
        .tasks()
        .filter(|(task, _)| task.job() == "worker")
        .map(|(task, _)| task.task())
        .collect();
    assert_eq!(workers, [1, 3]);
    assert!(resolved.notes.iter().any(|note| note.contains("rpc_layer")));

    let resolved = resolve(&of_sample(sample!("tf_config_evaluator"))).unwrap();
    assert_eq!(resolved.task.job(), "evaluator");
    assert_eq!((resolved.address(), known(&resolved).len()), (None, 2));
}

#[test]
fn a_tf_config_of_one_process_is_none() {
    for text in [
        "{}",
        r#"{"task": {"type": "worker", "index": 0}}"#,
        r#"{"cluster": {}}"#,
    ] {
        let status = refused(
            &surroundings(&[("TF_CONFIG", text)]),
            "CLUSTER_UNRESOLVED",
            "single",
        );
        assert!(status.message().contains("torchrun: RANK"), "{status}");
    }
    let one = r#"{"cluster": {"worker": ["a:1"]}}"#;
    let resolved = resolve(&surroundings(&[("TF_CONFIG", one)])).unwrap();
    assert_eq!(resolved.task.to_string(), "/job:worker/replica:0/task:0");
}

#[test]
fn open_mpi_finds_its_root_where_it_can() {
    let status = refused(
        &of_sample(sample!("openmpi4")),
        "CLUSTER_ROOT_UNKNOWN",
        "RENDEZ_ROOT",
    );
    assert!(status.message().contains("rank 2 of 4"), "{status}");

    let mut named = of_sample(sample!("openmpi4"));
    named.flags.root = Some("a:4000".parse().unwrap());
    let resolved = resolve(&named).unwrap();
    assert_eq!(
        (resolved.source, root(&resolved)),
        (Source::Mpi, ("a:4000".into(), 2, 4))
    );
    assert_eq!(resolved.epoch.unwrap().run, "195559425");

    let mut within_slurm = of_sample(sample!("openmpi4"));
    let nodes = ("SLURM_JOB_NODELIST".to_owned(), "b[7-9]".to_owned());
    within_slurm.environment.extend([nodes]);
    assert_eq!(root(&resolve(&within_slurm).unwrap()).0, "b7:29700");

    let resolved = resolve(&of_sample(sample!("openmpi5"))).unwrap();
    assert_eq!(root(&resolved), ("127.0.0.1:29700".into(), 1, 2));
    assert_eq!(
        resolved.local,
        Some(Local {
            rank: 1,
            size: Some(2)
        })
    );
}

#[test]
fn hydra_tells_ranks_too() {
    let pairs = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
    ];
    assert_eq!(root(&resolve(&surroundings(&pairs)).unwrap()).1, 1);
    // One rank of one is here, wherever that is.
    let alone = [("PMI_RANK", "0"), ("PMI_SIZE", "1")];
    let resolved = resolve(&surroundings(&alone)).unwrap();
    assert_eq!(root(&resolved), ("127.0.0.1:29700".into(), 0, 1));
}

#[test]
fn hydra_within_a_step_of_slurm_is_no_step() {
    let mut sample = of_sample(sample!("hydra_in_slurm"));
    let resolved = resolve(&sample).unwrap();
    assert_eq!(
        (resolved.source, root(&resolved)),
        (Source::Mpi, ("127.0.0.1:29700".into(), 1, 3))
    );
    sample
        .environment
        .insert("MPI_LOCALNRANKS".into(), "2".into());
    assert_eq!(root(&resolve(&sample).unwrap()).0, "cn009:29700");

    // Of a batch script, whose step is Slurm's own, the ranks cannot be srun's.
    let batch = ("SLURM_STEP_ID".to_owned(), "4294967291".to_owned());
    sample.environment.extend([batch]);
    sample.environment.remove("MPI_LOCALRANKID");
    assert_eq!(resolve(&sample).unwrap().source, Source::Mpi);
}

#[test]
fn what_others_call_as_torchrun_does_is_not_its() {
    // A service named `master` gives every pod of its namespace the port of an address.
    let mut pod = of_sample(sample!("jobset"));
    let link = ("MASTER_PORT".to_owned(), "tcp://10.96.3.4:29500".to_owned());
    pod.environment.extend([link]);
    assert_eq!(resolve(&pod).unwrap().source, Source::Kubernetes);
    let mut ranked = of_sample(sample!("torchrun"));
    ranked.environment.insert("RANK".into(), "general".into());
    refused(&ranked, "LAUNCHER_ENVIRONMENT", "RANK");
    ranked.environment.remove("WORLD_SIZE");
    refused(&ranked, "CLUSTER_UNRESOLVED", "WORLD_SIZE not set");
}

#[test]
fn slurm_tells_every_address() {
    let resolved = resolve(&of_sample(sample!("slurm"))).unwrap();
    assert_eq!(resolved.source, Source::Slurm);
    assert_eq!(
        known(&resolved).to_string(),
        "worker=cn009:29700,cn009:29701,cn010:29700,cn010:29701,gpu1:29700"
    );
    assert_eq!(resolved.address().unwrap().to_string(), "gpu1:29700");
    let epoch = resolved.epoch.clone().unwrap();
    assert_eq!((epoch.run.as_str(), epoch.restart), ("slurm 476.2", 1));

    let mut in_turn = of_sample(sample!("slurm"));
    in_turn.environment.extend([
        ("SLURM_DISTRIBUTION".into(), "cyclic,pack".into()),
        ("SLURM_PROCID".into(), "2".into()),
        ("RENDEZ_PORT".into(), "4000".into()),
    ]);
    assert_eq!(
        known(&resolve(&in_turn).unwrap()).to_string(),
        "worker=cn009:4000,cn010:4000,gpu1:4000,cn009:4001,cn010:4001"
    );
}

#[test]
fn slurm_says_when_it_cannot_tell_who_is_where() {
    let planes = ("SLURM_DISTRIBUTION".to_owned(), "plane=2".to_owned());
    let mut other = of_sample(sample!("slurm"));
    other.environment.extend([planes]);
    let resolved = resolve(&other).unwrap();
    assert_eq!(root(&resolved), ("cn009:29700".into(), 4, 5));
    assert!(resolved.notes[0].contains("rank 0"), "{:?}", resolved.notes);
    // Rank 0 is at the same place however they are dealt out, and would not know that the others wait for it.
    for (name, value) in [("SLURM_NODEID", "0"), ("SLURM_LOCALID", "7")] {
        let mut other = of_sample(sample!("slurm"));
        other.environment.insert(name.into(), value.into());
        refused(&other, "LAUNCHER_ENVIRONMENT", "SLURM_DISTRIBUTION");
        refused(&other, "LAUNCHER_ENVIRONMENT", name);
        let given = ("RENDEZ_ROOT".to_owned(), "cn009:4000".to_owned());
        other.environment.extend([given]);
        let resolved = resolve(&other).unwrap();
        assert_eq!(root(&resolved), ("cn009:4000".into(), 4, 5), "{name}");
    }
    // A batch script is no task of a step.
    let mut script = of_sample(sample!("slurm"));
    script
        .environment
        .insert("SLURM_STEP_ID".into(), "4294967291".into());
    script
        .environment
        .retain(|name, _| !name.starts_with("PMI"));
    refused(&script, "CLUSTER_UNRESOLVED", "srun");
}

#[test]
fn kubernetes_writes_names_down() {
    let resolved = resolve(&of_sample(sample!("jobset"))).unwrap();
    assert_eq!(resolved.source, Source::Kubernetes);
    assert_eq!(
        resolved.task.to_string(),
        "/job:gpu_workers/replica:0/task:5"
    );
    assert_eq!(known(&resolved).len(), 8);
    let address = resolved.address().unwrap().to_string();
    assert_eq!(address, "pytorch-gpu-workers-1-1.pytorch:29700");
    assert_eq!(resolved.epoch.clone().unwrap().restart, 3);

    let mut pod = of_sample(sample!("indexed_job"));
    pod.host_name = Some("train-2".into());
    let resolved = resolve(&pod).unwrap();
    assert_eq!(
        known(&resolved).to_string(),
        "worker=train-0.trainers:29700,train-1.trainers:29700,train-2.trainers:29700"
    );

    let resolved = resolve(&of_sample(sample!("leader_worker_set"))).unwrap();
    assert_eq!(
        known(&resolved).to_string(),
        "worker=vllm-0.vllm.default:29700,vllm-0-1.vllm.default:29700,vllm-0-2.vllm.default:29700,\
         vllm-0-3.vllm.default:29700"
    );
    assert_eq!(resolved.task.task(), 2);
}

#[test]
fn a_file_serves_all_tasks() {
    let text = "shards = 2\ntask = \"/job:worker/task:3\"\n[cluster]\nps = [\"a:1\", \"b:1\"]\n\
                worker = { 0 = \"c:1\", 3 = \"[::1]:1\" }\n";
    let resolved = resolve(&with_file(text)).unwrap();
    assert_eq!(
        (resolved.source, resolved.origin.as_str()),
        (Source::File, "here.toml")
    );
    assert_eq!(
        known(&resolved).to_string(),
        "ps=a:1,b:1;worker=c:1,3@[::1]:1"
    );
    assert_eq!(resolved.address().unwrap().host(), "::1");

    let mut other = with_file(text);
    other
        .environment
        .insert("RENDEZ_TASK".into(), "/job:ps/task:1".into());
    assert_eq!(resolve(&other).unwrap().address().unwrap().host(), "b");
    other.flags.task = Some(crate::ground::TaskName::new("ps", 0, 0).unwrap());
    assert_eq!(resolve(&other).unwrap().address().unwrap().host(), "a");
}

#[test]
fn a_file_may_name_the_root_and_what_launchers_leave_out() {
    let rooted = with_file("root = \"r:1\"\nrank = 1\nworld_size = 3\n");
    let resolved = resolve(&rooted).unwrap();
    assert_eq!(resolved.source, Source::File);
    assert_eq!(root(&resolved), ("r:1".into(), 1, 3));

    let mut beside =
        with_file("root = \"r:1\"\nport = 5\nsubdomain = \"trainers\"\nworld_size = 3\n");
    beside.environment = environment(sample!("openmpi4"));
    assert_eq!(root(&resolve(&beside).unwrap()), ("r:1".into(), 2, 4));
    beside.environment = BTreeMap::from([("JOB_COMPLETION_INDEX".into(), "1".into())]);
    beside.host_name = Some("train-1".into());
    let resolved = resolve(&beside).unwrap();
    assert_eq!(
        resolved.address().unwrap().to_string(),
        "train-1.trainers:5"
    );
    refused(&with_file("root = \"r\""), "CLUSTER_ADDRESS", "\"r\"");
    let wrong = with_file("root = \"r:1\"\nrank = -1\nworld_size = 3\n");
    refused(&wrong, "LAUNCHER_ENVIRONMENT", "rank=-1");
}

#[test]
fn the_first_who_says_anything_is_believed() {
    let mut all = with_file("[cluster]\nps = [\"file:1\"]\n");
    all.environment = environment(sample!("slurm"));
    all.environment.extend(environment(sample!("torchrun")));
    all.environment
        .extend(environment(sample!("tf_config_chief")));
    all.environment.extend(environment(sample!("openmpi5")));
    all.environment
        .extend(environment(sample!("leader_worker_set")));
    all.environment
        .insert("RENDEZ_CLUSTER".into(), "ps=given:1".into());
    let mut sources = Vec::new();
    let takes: [fn(&mut Surroundings); 7] = [
        |all| drop(all.environment.remove("RENDEZ_CLUSTER")),
        |all| all.file = None,
        |all| drop(all.environment.remove("TF_CONFIG")),
        |all| drop(all.environment.remove("RANK")),
        |all| drop(all.environment.remove("OMPI_COMM_WORLD_RANK")),
        |all| drop(all.environment.remove("SLURM_JOB_ID")),
        |all| drop(all.environment.remove("LWS_LEADER_ADDRESS")),
    ];
    for take in takes {
        let resolved = resolve(&all).unwrap();
        let passed: Vec<Source> = resolved.passed_over.iter().map(|p| p.source).collect();
        assert_eq!(passed, sources, "all before it were asked");
        assert!(
            resolved
                .passed_over
                .iter()
                .all(|passed| !passed.why.is_empty())
        );
        sources.push(resolved.source);
        take(&mut all);
    }
    assert_eq!(sources, Source::ALL);
    refused(&all, "CLUSTER_UNRESOLVED", "nothing says");
}

#[test]
fn flags_beat_variables_one_by_one() {
    let mut given = surroundings(&[
        ("RENDEZ_CLUSTER", "worker=a:1,b:1"),
        ("RENDEZ_TASK", "/job:worker/task:1"),
    ]);
    assert_eq!(resolve(&given).unwrap().address().unwrap().host(), "b");
    given.flags.task = Some(crate::ground::TaskName::new("worker", 0, 0).unwrap());
    assert_eq!(resolve(&given).unwrap().address().unwrap().host(), "a");
    given.flags.cluster = Some(ClusterSpec::parse("worker=c:1").unwrap());
    let resolved = resolve(&given).unwrap();
    assert_eq!(
        (resolved.address().unwrap().host(), resolved.origin.as_str()),
        ("c", "--cluster")
    );

    let rooted = surroundings(&[
        ("RENDEZ_ROOT", "r:1"),
        ("RENDEZ_RANK", "1"),
        ("RENDEZ_WORLD_SIZE", "3"),
    ]);
    assert_eq!(root(&resolve(&rooted).unwrap()), ("r:1".into(), 1, 3));
}

#[test]
fn a_service_of_kubernetes_is_no_port() {
    for (port, host, right) in [
        ("tcp://10.96.3.4:29700", Some("10.96.3.4"), Ok("gpu1:29700")),
        ("udp://10.96.3.4:29700", Some("10.96.3.4"), Ok("gpu1:29700")),
        ("4000", Some("10.96.3.4"), Ok("gpu1:4000")),
        ("tcp://10.96.3.4:29700", None, Err("LAUNCHER_ENVIRONMENT")),
        ("x", Some("10.96.3.4"), Err("LAUNCHER_ENVIRONMENT")),
    ] {
        let mut step = of_sample(sample!("slurm"));
        step.environment.insert("RENDEZ_PORT".into(), port.into());
        if let Some(host) = host {
            let host = ("RENDEZ_SERVICE_HOST".to_owned(), host.to_owned());
            step.environment.extend([host]);
        }
        match right {
            Ok(address) => {
                let resolved = resolve(&step).unwrap();
                assert_eq!(resolved.address().unwrap().to_string(), address, "{port}");
            }
            Err(reason) => drop(refused(&step, reason, port)),
        }
    }
}
