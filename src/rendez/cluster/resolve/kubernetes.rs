//! Kubernetes: LeaderWorkerSets, JobSets and indexed Jobs, whose pods have names that can be written down beforehand.
//!
//! * A LeaderWorkerSet's leader is `set-0.…`, its workers `set-0-1.…`, `set-0-2.…`, in the leader's own subdomain.
//! * A JobSet's pods are `set-job-0-0.set`: job set, replicated job, job, pod, and a subdomain that is the set's name.
//! * An indexed Job's pods are `job-0.service`; the service's name is nowhere in the pod's environment.

use super::ranks::{JOB, Ranks};
use super::{Answer, Epoch, Found, Membership, View, absent, wrong};
use crate::cluster::address::HostPort;
use crate::cluster::spec::ClusterSpec;
use crate::cluster::variables::{self, kubernetes as names, torchrun};
use crate::ground::{Status, TaskName, catalogue};

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    if let Some(leader) = view.variable(names::LEADER_ADDRESS) {
        return leader_worker_set(view, leader);
    }
    let Some(index) = view.number(names::COMPLETION_INDEX)? else {
        return absent("neither LWS_LEADER_ADDRESS nor JOB_COMPLETION_INDEX is set");
    };
    match view.variable(names::JOBSET_NAME) {
        Some(set) => job_set(view, set, index),
        None => indexed_job(view, index),
    }
}

fn leader_worker_set(view: &View<'_>, leader: &str) -> Result<Answer, Status> {
    let (index, size) = (
        view.number(names::WORKER_INDEX)?,
        view.number(names::GROUP_SIZE)?,
    );
    let (Some(index), Some(size)) = (index, size) else {
        return absent("LWS_LEADER_ADDRESS is set, but LWS_WORKER_INDEX or LWS_GROUP_SIZE is not");
    };
    let ranks = Ranks::new((names::WORKER_INDEX, index), (names::GROUP_SIZE, size))?;
    let Some((name, domain)) = leader.split_once('.') else {
        let why = "it should be the leader's name and its subdomain, as set-0.set.default";
        return Err(wrong(names::LEADER_ADDRESS, leader, why));
    };
    let pod = |index: u32| match index {
        0 => leader.to_owned(),
        index => format!("{name}-{index}.{domain}"),
    };
    let spec = pods(view, JOB, (0..size).map(pod))?;
    let origin = format!(
        "{}, {} and {}",
        names::LEADER_ADDRESS,
        names::GROUP_SIZE,
        names::WORKER_INDEX
    );
    Found::new(Membership::Known(spec), ranks.task()?, origin).found()
}

fn job_set(view: &View<'_>, set: &str, index: u32) -> Result<Answer, Status> {
    let Some(job) = view.variable(names::REPLICATED_JOB) else {
        return absent("JOBSET_NAME is set, but REPLICATED_JOB_NAME is not");
    };
    let job_index = view.number(names::JOB_INDEX)?.unwrap_or(0);
    let replicas = view.number(names::REPLICAS)?;
    let jobs = replicas.map_or_else(|| job_index.saturating_add(1), |jobs| jobs.max(1));
    if job_index >= jobs {
        let why = format!("a job's number is below {}={jobs}", names::REPLICAS);
        return Err(wrong(names::JOB_INDEX, &job_index.to_string(), &why));
    }
    let (size_name, size) = size(view, "the JobSet")?;
    if !size.is_multiple_of(jobs) {
        let why = format!("it should be a multiple of {}={jobs}", names::REPLICAS);
        return Err(wrong(size_name, &size.to_string(), &why));
    }
    let per_job = size / jobs;
    if index >= per_job {
        let why = format!("each of {jobs} jobs has {per_job} pods, by {size_name}={size}");
        return Err(wrong(names::COMPLETION_INDEX, &index.to_string(), &why));
    }
    let rank = job_index * per_job + index;
    let ranks = Ranks::new((names::COMPLETION_INDEX, rank), (size_name, size))?;
    let domain = view.subdomain();
    let domain = domain.as_deref().unwrap_or(set);
    let pod = |rank: u32| format!("{set}-{job}-{}-{}.{domain}", rank / per_job, rank % per_job);
    // Kubernetes' names have hyphens, which a job's name in a device name cannot have.
    let task = TaskName::new(&job.replace('-', "_"), 0, ranks.rank)?;
    let spec = pods(view, task.job(), (0..size).map(pod))?;
    let origin = format!(
        "{}, {}, {}, {} and {size_name}",
        names::JOBSET_NAME,
        names::REPLICATED_JOB,
        names::JOB_INDEX,
        names::COMPLETION_INDEX
    );
    let mut found = Found::new(Membership::Known(spec), task, origin);
    if replicas.is_none() {
        found
            .notes
            .push(format!("REPLICATED_JOB_REPLICAS is not set: {jobs} taken"));
    }
    found.notes.push(format!(
        "replicated jobs of JobSet {set} other than {job} are not in the cluster"
    ));
    found.epoch = view.number(names::RESTART_ATTEMPT)?.map(|restart| Epoch {
        run: set.to_owned(),
        restart: restart.into(),
    });
    found.found()
}

fn indexed_job(view: &View<'_>, index: u32) -> Result<Answer, Status> {
    let Some(domain) = view.subdomain() else {
        return absent(
            "this looks like an indexed Job of Kubernetes: name its headless service in RENDEZ_SUBDOMAIN, and its \
             number of pods in RENDEZ_WORLD_SIZE",
        );
    };
    let host = view.surroundings.host_name.as_deref().unwrap_or("");
    let pod = host.split('.').next().unwrap_or("");
    let Some(job) = pod
        .strip_suffix(&format!("-{index}"))
        .filter(|job| !job.is_empty())
    else {
        let why = format!("the pod's host name should end in -{index}, and is '{pod}'");
        return Err(wrong(names::COMPLETION_INDEX, &index.to_string(), &why));
    };
    let (size_name, size) = size(view, "the indexed Job")?;
    let ranks = Ranks::new((names::COMPLETION_INDEX, index), (size_name, size))?;
    let spec = pods(
        view,
        JOB,
        (0..size).map(|index| format!("{job}-{index}.{domain}")),
    )?;
    let origin = format!(
        "{}, the host name, {} and {size_name}",
        names::COMPLETION_INDEX,
        variables::SUBDOMAIN
    );
    Found::new(Membership::Known(spec), ranks.task()?, origin).found()
}

/// How many pods there are, and which variable says so: Kubernetes itself does not.
fn size<'a>(view: &View<'_>, what: &str) -> Result<(&'a str, u32), Status> {
    if let Some(size) = view.size()? {
        return Ok((variables::WORLD_SIZE, size));
    }
    for name in [torchrun::WORLD_SIZE, names::NODES] {
        if let Some(size) = view.number(name)? {
            return Ok((name, size));
        }
    }
    let message =
        format!("{what} does not say how many pods it has: set RENDEZ_WORLD_SIZE in its template");
    Err(Status::of(catalogue::CLUSTER_ROOT_UNKNOWN, message))
}

fn pods(
    view: &View<'_>,
    job: &str,
    names: impl Iterator<Item = String>,
) -> Result<ClusterSpec, Status> {
    let port = view.port()?;
    let addresses = names.map(|name| HostPort::new(&name, port));
    ClusterSpec::of_job(job, addresses.collect::<Result<Vec<_>, Status>>()?)
}
