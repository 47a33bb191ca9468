//! Discovery: which devices a session has, asked of every worker that it may use.
//!
//! Knows the cluster, filters and time. The original waits for ever for a worker that is not there; here the wait is
//! bounded. Both name the worker that is waited for.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::graph::{DeviceIndex, Devices};
use crate::server::worker::Worker;
use rendez::cluster::ClusterSpec;
use rendez::engine::Engine;
use rendez::ground::{
    Code, DeviceName, Incarnation, Locked, Status, TaskName, Unpoisoned, catalogue,
};
use rendez_proto::methods::worker_service::GetStatus;
use rendez_proto::tensorflow::{DeviceAttributes, GetStatusRequest, GetStatusResponse};

#[cfg(test)]
mod tests;

/// How often the missing workers are named.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// How often a worker is dialled that is not there.
const DIAL_EVERY: Duration = Duration::from_secs(1);
/// How long a worker is asked at least, also where the time has gone by waiting for others.
const ONCE: Duration = Duration::from_millis(200);
/// How long to wait before an unanswered question is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// So many are asked at once, each on a thread of its own.
const AT_ONCE: usize = 64;

/// What a session may use, and which of it is the master's own.
///
/// # Errors
/// `GRAPH_DEVICE` if the master's task has none; what is wrong with a name.
pub(super) fn named(
    master: &TaskName,
    attributes: &[DeviceAttributes],
) -> Result<(Devices, DeviceIndex), Status> {
    let names = attributes.iter();
    let names = names.map(|device| (device.name.as_str(), Incarnation(device.incarnation)));
    let devices = Devices::new(names)?;
    let own = devices.find(&DeviceName::cpu(master));
    let own = own.ok_or_else(|| Status::of(catalogue::GRAPH_DEVICE, "the master has no device"))?;
    Ok((devices, own))
}

/// Does `what` for each, at most so many at once; the outcomes are in order. One that takes long holds one thread: the
/// others go on.
pub(super) fn each<T: Send, R: Send>(
    items: Vec<T>,
    what: impl Fn(T) -> Result<R, Status> + Sync,
) -> Vec<Result<R, Status>> {
    let others = items.len().min(AT_ONCE).saturating_sub(1);
    let outcomes = Mutex::new(items.iter().map(|_| None).collect::<Vec<_>>());
    let items = Mutex::new(items.into_iter().enumerate());
    let next = || items.locked().next();
    let work = || {
        while let Some((index, item)) = next() {
            let outcome = what(item);
            let mut outcomes = outcomes.locked();
            if let Some(place) = outcomes.get_mut(index) {
                *place = Some(outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        // What has no thread is done by the others, this one among them.
        let threads = (0..others).map(|_| std::thread::Builder::new().spawn_scoped(scope, work));
        let threads: Vec<_> = threads.map_while(Result::ok).collect();
        work();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    });
    let outcomes = outcomes.into_inner();
    let outcomes = outcomes.unpoisoned().into_iter();
    let broke = || {
        Status::of(
            catalogue::SERVICE_FAILED,
            "a thread of the master broke down",
        )
    };
    outcomes
        .map(|outcome| outcome.unwrap_or_else(|| Err(broke())))
        .collect()
}

/// The tasks other than `own` that the filters leave.
///
/// # Errors
/// `DEVICE_MALFORMED` for a filter that is none.
pub(super) fn others(
    own: &TaskName,
    cluster: &ClusterSpec,
    filters: &[String],
) -> Result<Vec<TaskName>, Status> {
    let tasks: Vec<_> = cluster
        .tasks()
        .map(|(task, _)| task)
        .filter(|task| task != own)
        .collect();
    let names: Vec<_> = tasks
        .iter()
        .map(|task| DeviceName::cpu(task).to_string())
        .collect();
    // Before a worker is asked its first device stands for it.
    let wanted = Devices::new(
        names
            .iter()
            .map(|name| (name.as_str(), Incarnation::CURRENT)),
    )?;
    let wanted = wanted.filtered(filters, Some(own))?;
    Ok(wanted.iter().map(|device| device.task.clone()).collect())
}

/// The devices of this task and of all that the filters leave.
///
/// # Errors
/// `WORKER_ABSENT` names a worker that did not answer within `patience`; `DEVICE_MALFORMED` for a filter that is none.
pub(super) fn devices(
    worker: &Worker,
    engine: &Engine,
    cluster: &ClusterSpec,
    filters: &[String],
    patience: Duration,
) -> Result<Vec<DeviceAttributes>, Status> {
    let asked = others(worker.task(), cluster, filters)?;
    let mut found = worker.devices();
    let began = Instant::now();
    for outcome in each(asked, |task| ask(engine, &task, began, patience)) {
        found.extend(outcome?);
    }
    Ok(found)
}

/// The devices of one worker, which is waited for since `began`.
///
/// # Errors
/// `WORKER_ABSENT` if it did not answer within `patience` of that; `CALL_MALFORMED` for what is no answer.
pub(super) fn ask(
    engine: &Engine,
    task: &TaskName,
    began: Instant,
    patience: Duration,
) -> Result<Vec<DeviceAttributes>, Status> {
    let mut said = began.elapsed();
    loop {
        engine.connect(task);
        let left = patience.saturating_sub(began.elapsed());
        match engine.ask::<GetStatus>(task, &GetStatusRequest {}, left.clamp(ONCE, DIAL_EVERY)) {
            Ok(answer) => return checked(task, answer),
            Err(status) if is_absence(&status) => {
                let left = patience.saturating_sub(began.elapsed());
                if left.is_zero() {
                    let message = format!(
                        "CreateSession waited {patience:?} for a response from worker: {task}: {}. A session that does \
                         not need it leaves it out by its device_filters",
                        status.message()
                    );
                    return Err(Status::of(catalogue::WORKER_ABSENT, message));
                }
                // One that answers may only have begun, and runs no graphs yet.
                std::thread::sleep(left.min(PAUSE));
            }
            Err(status) => return Err(status),
        }
        if began.elapsed() >= said + SAY_EVERY {
            said = began.elapsed();
            tracing::info!("CreateSession still waiting for response from worker: {task}");
        }
    }
}

/// The devices that a worker says it has, which can only be its own.
fn checked(task: &TaskName, answer: GetStatusResponse) -> Result<Vec<DeviceAttributes>, Status> {
    let refused = |what: String| {
        let message = format!("{task} answered what is no answer: {what}");
        Status::of(catalogue::CALL_MALFORMED, message)
    };
    for device in &answer.device_attributes {
        let name =
            DeviceName::parse_full(&device.name).map_err(|error| refused(error.to_string()))?;
        if name.task_name().as_ref() != Some(task) {
            return Err(refused(format!("{name} is no device of it")));
        }
    }
    Ok(answer.device_attributes)
}

fn is_absence(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable)
}
