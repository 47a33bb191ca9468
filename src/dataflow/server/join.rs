//! Join: how ranks that know only where rank 0 listens learn of each other.
//!
//! Uses nothing but the engine: each rank sends its address to the root by key, and the root sends all of them to each.
//!
//! ```text
//!   rank r ── "rendez.join.address" ──▶ rank 0        from every rank, in any order
//!   rank r ◀── "rendez.join.cluster" ── rank 0        once all have come
//! ```

use std::future::Future;
use std::task::Poll;
use std::time::{Duration, Instant};

use rendez::cluster::{ClusterSpec, HostPort};
use rendez::engine::Engine;
use rendez::ground::{Code, Key, Shape, Status, StepId, TaskName, catalogue};
use rendez::memory::Tensor;

/// The step of joining: no user's step is the last one.
const STEP: StepId = StepId(u64::MAX);

/// The edges of joining.
const ADDRESS: &str = "rendez.join.address";
const CLUSTER: &str = "rendez.join.cluster";

/// How often waiting tasks say for which task.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Meets all ranks, and gives the cluster they are. The task began to look for them at `began`.
///
/// # Errors
/// `Unavailable` names the ranks that did not come within `patience`.
pub(super) fn join(
    engine: &Engine,
    root: &HostPort,
    rank: u32,
    size: u32,
    patience: Duration,
    began: Instant,
) -> Result<ClusterSpec, Status> {
    let deadline = began + patience;
    let job = engine.task().job().to_owned();
    let name = |rank: u32| TaskName::new(&job, 0, rank);
    let spec = if rank == 0 {
        // The others have dialled that.
        let mut addresses = vec![(0, root.clone())];
        let mut missing: Vec<u32> = (1..size).collect();
        while !missing.is_empty() {
            let mut still = Vec::new();
            for (other, heard) in hear_all(engine, &missing, SAY_EVERY.min(left(deadline)))? {
                match heard {
                    Ok(address) => addresses.push((other, address.parse()?)),
                    Err(status) if is_absence(&status) => still.push(other),
                    Err(status) => return Err(status),
                }
            }
            missing = still;
            if !missing.is_empty() && left(deadline).is_zero() {
                return Err(absent(&job, &missing, patience));
            }
            if !missing.is_empty() {
                tracing::info!(job, ranks = %list(&missing), "still waiting for ranks");
            }
        }
        let mut spec = ClusterSpec::new();
        spec.add_job(&job, addresses)?;
        let told = spec.to_string();
        for other in 1..size {
            let key = between(&name(0)?, &name(other)?, CLUSTER)?;
            engine.step(STEP).send(&key, tensor(&told)?)?;
        }
        spec
    } else {
        let own = own_address(engine, root, left(deadline))?.to_string();
        let step = engine.step(STEP);
        step.send(&between(&name(rank)?, &name(0)?, ADDRESS)?, tensor(&own)?)?;
        let key = between(&name(0)?, &name(rank)?, CLUSTER)?;
        // Why it is not reached, if it is not, is said by that; a receive could only say that it was late.
        let got = engine.reach(&name(0)?, left(deadline));
        let got = got.and_then(|_| step.recv(&key).deadline(left(deadline)).wait());
        let got = got.map_err(|status| {
            let message = format!(
                "rank 0 at {root} did not send the cluster: {}",
                status.message()
            );
            Status::new(Code::Unavailable, catalogue::CLUSTER_INCOMPLETE, message)
        })?;
        ClusterSpec::parse(text(&got.tensor)?)?
    };
    for (task, address) in spec.tasks().filter(|(task, _)| task != engine.task()) {
        engine.add_peer(task, super::dialled(address));
    }
    Ok(spec)
}

/// A rank, and where it listens, or why it did not say so.
type Heard = (u32, Result<String, Status>);

/// Waits for the addresses of all `ranks` at once; gives what each said.
fn hear_all(engine: &Engine, ranks: &[u32], patience: Duration) -> Result<Vec<Heard>, Status> {
    let job = engine.task().job();
    let mut waiting = Vec::new();
    for &rank in ranks {
        let key = between(&TaskName::new(job, 0, rank)?, engine.task(), ADDRESS)?;
        let receive = engine.step(STEP).recv(&key).deadline(patience);
        waiting.push((rank, Box::pin(receive)));
    }
    let mut heard = Vec::new();
    futures_lite::future::block_on(std::future::poll_fn(|context| {
        waiting.retain_mut(|(rank, receive)| match receive.as_mut().poll(context) {
            Poll::Ready(outcome) => {
                let address = outcome.and_then(|got| text(&got.tensor).map(str::to_owned));
                heard.push((*rank, address));
                false
            }
            Poll::Pending => true,
        });
        if waiting.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    Ok(heard)
}

fn own_address(engine: &Engine, root: &HostPort, patience: Duration) -> Result<HostPort, Status> {
    let own = engine.address_for(Some(&super::dialled(root)), patience)?;
    let rendez::control::Address::Tcp { host, port } = own else {
        let message = format!(
            "a rank must listen at a TCP address to be found by those who know only the root {root}"
        );
        return Err(Status::new(
            Code::InvalidArgument,
            catalogue::CLUSTER_SPEC,
            message,
        ));
    };
    HostPort::new(&host, port)
}

fn between(source: &TaskName, destination: &TaskName, edge: &str) -> Result<Key, Status> {
    Ok(Key::between(
        &source.to_string(),
        &destination.to_string(),
        edge,
    )?)
}

fn tensor(text: &str) -> Result<Tensor, Status> {
    let unfit = |error: &dyn std::fmt::Display| {
        Status::new(Code::Internal, catalogue::TENSOR_SHAPE, error.to_string())
    };
    let shape = Shape::row(text.len() as u64).ok_or_else(|| unfit(&"too long"))?;
    Tensor::from_vec(text.as_bytes().to_vec(), shape).map_err(|error| unfit(&error))
}

fn text(tensor: &Tensor) -> Result<&str, Status> {
    std::str::from_utf8(tensor.host()?).map_err(|error| {
        let message = format!("a rank sent an address that is no text: {error}");
        Status::new(Code::InvalidArgument, catalogue::CLUSTER_SPEC, message)
    })
}

/// Not there yet, or not heard of in time.
fn is_absence(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable)
}

fn absent(job: &str, missing: &[u32], patience: Duration) -> Status {
    let message = format!(
        "ranks {} of job {job} did not come within {patience:?}; raise connect_timeout if they start later",
        list(missing)
    );
    Status::new(Code::Unavailable, catalogue::CLUSTER_INCOMPLETE, message)
}

fn list(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(16).map(u32::to_string).collect();
    let more = if ranks.len() > shown.len() {
        ", …"
    } else {
        ""
    };
    format!("{}{more}", shown.join(", "))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
