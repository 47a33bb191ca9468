//! What launchers set in the environment of a job starts a cluster as it is: nothing is added but the secret, and where
//! a launcher says nothing of ports, a port.

use std::net::TcpListener;

use super::support::{Place, Process, free_ports, text};

type Environment = Vec<(&'static str, String)>;

/// A sample's variables, as `tests/data/launchers` has them.
fn sample(text: &'static str) -> Environment {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name, value.to_owned()))
        .collect()
}

/// The same with these instead.
fn with(mut environment: Environment, values: &[(&'static str, String)]) -> Environment {
    for (name, value) in values {
        environment.retain(|(of, _)| of != name);
        environment.push((name, value.clone()));
    }
    environment
}

/// Starts a task for each environment, all with one secret or none, and wants every pair to have handed over.
fn check(environments: &[Environment], has_secret: bool, source: &str) {
    let place = Place::new();
    let secret = place.secret("secret");
    let mut tasks = Vec::new();
    for environment in environments {
        let mut command = place.command(&["serve", "--check", "--once"]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if has_secret {
            command.env("RENDEZ_CLUSTER_SECRET_FILE", text(&secret));
        }
        tasks.push(Process::start(command));
    }
    let count = tasks.len();
    for task in tasks {
        let ended = task.finish().well();
        assert!(
            ended
                .said
                .contains(&format!(" of {count} tasks ({source}: ")),
            "{}",
            ended.said
        );
        let handed = ended.handed_over();
        assert_eq!(handed.len(), count - 1, "{}", ended.said);
        assert!(
            handed.iter().all(|(.., path, _)| path == "shm"),
            "{}",
            ended.said
        );
    }
    place.await_nobody();
}

fn check_both(environments: impl Fn() -> Vec<Environment>, source: &str) {
    for has_secret in [false, true] {
        check(&environments(), has_secret, source);
    }
}

#[test]
fn a_job_of_tensorflow() {
    let task = |[chief, worker]: [u16; 2], kind: &str| {
        let config = format!(
            "{{\"cluster\":{{\"chief\":[\"127.0.0.1:{chief}\"],\"worker\":[\"127.0.0.1:{worker}\"]}},\
             \"task\":{{\"type\":\"{kind}\",\"index\":0}},\"environment\":\"cloud\",\"rpc_layer\":\"grpc\"}}"
        );
        vec![("TF_CONFIG", config)]
    };
    let both = || {
        let ports = free_ports();
        vec![task(ports, "chief"), task(ports, "worker")]
    };
    check_both(both, "TF_CONFIG");
}

#[test]
fn a_job_of_torchrun_meets_at_its_root() {
    for has_secret in [false, true] {
        let [port, _] = free_ports();
        // torchrun's own store has the port that it names.
        let _store = TcpListener::bind(("127.0.0.1", port)).expect("the store's port");
        let rank = |rank: u32| {
            let values = [
                ("RANK", rank.to_string()),
                ("LOCAL_RANK", rank.to_string()),
                ("ROLE_RANK", rank.to_string()),
                ("GROUP_RANK", "0".into()),
                ("WORLD_SIZE", "3".into()),
                ("LOCAL_WORLD_SIZE", "3".into()),
                ("MASTER_ADDR", "127.0.0.1".into()),
                ("MASTER_PORT", port.to_string()),
            ];
            let sample = sample(include_str!("../data/launchers/torchrun.env"));
            with(sample, &values)
        };
        check(&[0, 1, 2].map(rank), has_secret, "torchrun");
    }
}

#[test]
fn a_job_of_open_mpi() {
    let ranks = || {
        let [port] = free_ports();
        let rank = |rank: u32| {
            let values = [
                ("OMPI_COMM_WORLD_RANK", rank.to_string()),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
                ("OMPI_COMM_WORLD_NODE_RANK", rank.to_string()),
                ("PMIX_RANK", rank.to_string()),
                // It says nothing of ports.
                ("RENDEZ_PORT", port.to_string()),
            ];
            with(
                sample(include_str!("../data/launchers/openmpi5.env")),
                &values,
            )
        };
        vec![rank(0), rank(1)]
    };
    check_both(ranks, "MPI");
}

#[test]
fn a_step_of_slurm() {
    let tasks = || {
        let [port, _] = free_ports();
        let task = |rank: u32| {
            let nodes = [
                "SLURM_NODELIST",
                "SLURM_JOB_NODELIST",
                "SLURM_STEP_NODELIST",
            ];
            let ones = [
                "SLURM_JOB_NUM_NODES",
                "SLURM_NNODES",
                "SLURM_STEP_NUM_NODES",
            ];
            let twos = [
                "SLURM_NTASKS",
                "SLURM_NPROCS",
                "SLURM_STEP_NUM_TASKS",
                "SLURM_TASKS_PER_NODE",
                "SLURM_STEP_TASKS_PER_NODE",
                "PMI_SIZE",
            ];
            let ranks = [
                "SLURM_PROCID",
                "SLURM_LOCALID",
                "SLURM_GTIDS",
                "PMI_RANK",
                "PMIX_RANK",
            ];
            let mut values = vec![
                ("SLURM_NODEID", "0".to_owned()),
                ("SLURMD_NODENAME", "127.0.0.1".into()),
                ("RENDEZ_PORT", port.to_string()),
            ];
            values.extend(nodes.map(|name| (name, "127.0.0.1".into())));
            values.extend(ones.map(|name| (name, "1".into())));
            values.extend(twos.map(|name| (name, "2".into())));
            values.extend(ranks.map(|name| (name, rank.to_string())));
            with(sample(include_str!("../data/launchers/slurm.env")), &values)
        };
        vec![task(0), task(1)]
    };
    check_both(tasks, "Slurm");
}
