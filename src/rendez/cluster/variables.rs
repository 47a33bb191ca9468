//! The names of the environment variables that describe a cluster, ours and those of launchers.
//!
//! Names only: what their values mean stands with the resolver that reads them. One value is no launcher's: Kubernetes'
//! [link](is_service_link) to a service that has our name.

/// The cluster as `job=host:port,host:port;job=…`.
pub const CLUSTER: &str = "RENDEZ_CLUSTER";
/// This task, as `/job:worker/task:0`.
pub const TASK: &str = "RENDEZ_TASK";
/// Where rank 0 listens, as `host:port`.
pub const ROOT: &str = "RENDEZ_ROOT";
/// This task's rank.
pub const RANK: &str = "RENDEZ_RANK";
/// How many ranks there are.
pub const WORLD_SIZE: &str = "RENDEZ_WORLD_SIZE";
/// The port of tasks whose launcher names none.
pub const PORT: &str = "RENDEZ_PORT";
/// The subdomain of a Kubernetes job's pods: the name of its headless service.
pub const SUBDOMAIN: &str = "RENDEZ_SUBDOMAIN";

/// Set in every pod of a namespace that has a Service named `rendez`, beside a `RENDEZ_PORT` of the same origin.
pub const SERVICE_HOST: &str = "RENDEZ_SERVICE_HOST";

/// True if `value` of variable `name` is Kubernetes' link to a service, as `RENDEZ_PORT=tcp://10.96.3.4:29700`, in an
/// environment with or without [`SERVICE_HOST`]: it counts as not set.
#[must_use]
pub fn is_service_link(name: &str, value: &str, has_service: bool) -> bool {
    let value = value.trim_start();
    has_service && name == PORT && (value.starts_with("tcp://") || value.starts_with("udp://"))
}

/// TensorFlow's cluster, as JSON.
pub const TF_CONFIG: &str = "TF_CONFIG";

/// torchrun.
pub mod torchrun {
    /// This process's rank.
    pub const RANK: &str = "RANK";
    /// How many processes there are.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// This process's rank on its machine.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// How many processes this machine has.
    pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
    /// The machine's rank.
    pub const GROUP_RANK: &str = "GROUP_RANK";
    /// How many machines there are.
    pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
    /// Rank 0's host.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// The port of torchrun's own store.
    pub const MASTER_PORT: &str = "MASTER_PORT";
    /// The run.
    pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
    /// How often this machine's agent restarted its processes.
    pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
}

/// Open MPI, PMIx, and the process managers of MPICH and its kin.
pub mod mpi {
    /// Open MPI: this process's rank.
    pub const OMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
    /// Open MPI: how many processes there are.
    pub const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
    /// Open MPI: this process's rank on its machine.
    pub const OMPI_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
    /// Open MPI: how many processes this machine has.
    pub const OMPI_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
    /// PMIx: the job.
    pub const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
    /// PMIx: this process's rank.
    pub const PMIX_RANK: &str = "PMIX_RANK";
    /// Hydra: this process's rank.
    pub const PMI_RANK: &str = "PMI_RANK";
    /// Hydra: how many processes there are.
    pub const PMI_SIZE: &str = "PMI_SIZE";
    /// Hydra: this process's rank on its machine.
    pub const HYDRA_LOCAL_RANK: &str = "MPI_LOCALRANKID";
    /// Hydra: how many processes this machine has.
    pub const HYDRA_LOCAL_SIZE: &str = "MPI_LOCALNRANKS";
}

/// Slurm.
pub mod slurm {
    /// This process's rank.
    pub const PROC_ID: &str = "SLURM_PROCID";
    /// Its rank on its node.
    pub const LOCAL_ID: &str = "SLURM_LOCALID";
    /// Its node's place in the list.
    pub const NODE_ID: &str = "SLURM_NODEID";
    /// How many processes the step has.
    pub const TASKS: &str = "SLURM_NTASKS";
    /// The same, where only the step's is told.
    pub const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
    /// The nodes of the step.
    pub const STEP_NODES: &str = "SLURM_STEP_NODELIST";
    /// The nodes of the job.
    pub const JOB_NODES: &str = "SLURM_JOB_NODELIST";
    /// The same, as older releases call it.
    pub const NODES: &str = "SLURM_NODELIST";
    /// Processes on each node of the step.
    pub const STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
    /// Processes on each node.
    pub const TASKS_PER_NODE: &str = "SLURM_TASKS_PER_NODE";
    /// How ranks are dealt out to nodes.
    pub const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
    /// The job.
    pub const JOB_ID: &str = "SLURM_JOB_ID";
    /// The step.
    pub const STEP_ID: &str = "SLURM_STEP_ID";
    /// How often the job was put back into the queue.
    pub const RESTART_COUNT: &str = "SLURM_RESTART_COUNT";
}

/// Kubernetes: indexed Jobs, JobSets, LeaderWorkerSets.
pub mod kubernetes {
    /// The pod's number within its job.
    pub const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";
    /// The job set.
    pub const JOBSET_NAME: &str = "JOBSET_NAME";
    /// The replicated job within it.
    pub const REPLICATED_JOB: &str = "REPLICATED_JOB_NAME";
    /// How many jobs the replicated job has.
    pub const REPLICAS: &str = "REPLICATED_JOB_REPLICAS";
    /// The job's number within the replicated job.
    pub const JOB_INDEX: &str = "JOB_INDEX";
    /// How often the job set was restarted.
    pub const RESTART_ATTEMPT: &str = "JOBSET_RESTART_ATTEMPT";
    /// Nodes, as templates of job sets commonly say.
    pub const NODES: &str = "NNODES";
    /// The leader of a leader-worker set.
    pub const LEADER_ADDRESS: &str = "LWS_LEADER_ADDRESS";
    /// Pods of its group.
    pub const GROUP_SIZE: &str = "LWS_GROUP_SIZE";
    /// The pod's number within the group.
    pub const WORKER_INDEX: &str = "LWS_WORKER_INDEX";
}
