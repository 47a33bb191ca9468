//! Slurm: a step's nodes, how many tasks each has, and which this is.
//!
//! From these every task's node and place on it follow, if ranks are dealt out in blocks or in turn; then all
//! addresses are known, one port after the other on each node. Otherwise only rank 0's node is.

use super::ranks::Ranks;
use super::{Answer, Epoch, Found, Local, Membership, View, absent, wrong};
use crate::cluster::spec::ClusterSpec;
use crate::cluster::variables::slurm as names;
use crate::cluster::{HostPort, host_list};
use crate::ground::limits::CLUSTER_TASKS_MAX;
use crate::ground::{Status, catalogue};

/// Steps from this number on are Slurm's own: batch scripts, interactive shells, containers of processes.
pub(super) const OWN_STEPS: u32 = 0xffff_fff0;

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    let Some(job) = view.variable(names::JOB_ID) else {
        return absent("SLURM_JOB_ID is not set");
    };
    let step = view.number(names::STEP_ID)?;
    let (Some(step), Some(rank)) = (
        step.filter(|step| *step < OWN_STEPS),
        view.number(names::PROC_ID)?,
    ) else {
        return absent(
            "this is a Slurm job's script or shell, not a task of a step: start tasks with srun",
        );
    };
    let sizes = [names::STEP_TASKS, names::TASKS];
    let size_name = view.first_of(&sizes).map_or(names::TASKS, |(name, _)| name);
    let Some(size) = view.number(size_name)? else {
        return absent("SLURM_NTASKS is not set");
    };
    let ranks = Ranks::new((names::PROC_ID, rank), (size_name, size))?;
    let node_lists = [names::STEP_NODES, names::JOB_NODES, names::NODES];
    let Some((nodes_name, nodes)) = view.first_of(&node_lists) else {
        return absent("SLURM_JOB_NODELIST is not set");
    };
    let nodes = host_list::expand(nodes)?;
    let local = view.number(names::LOCAL_ID)?;
    let origin = format!("{}, {size_name} and {nodes_name}", names::PROC_ID);
    let mut found = match (view.root()?, deal(view, ranks, size_name, &nodes)?) {
        (Some(root), _) => ranks.rooted(root, origin)?,
        (None, Ok(places)) => {
            agree(&places, rank, (view.number(names::NODE_ID)?, local))?;
            let spec = addresses(&places, &nodes, view.port()?)?;
            Found::new(Membership::Known(spec), ranks.task()?, origin)
        }
        (None, Err(why)) => {
            let first = nodes.first().map_or("", String::as_str);
            let root = HostPort::new(first, view.port()?)?;
            let mut found = ranks.rooted(root, origin)?;
            found.notes.push(format!(
                "{why}: the others are learnt from rank 0, taken to be on {first}"
            ));
            found
        }
    };
    found.local = local.map(|rank| Local { rank, size: None });
    found.epoch = Some(Epoch {
        run: format!("slurm {job}.{step}"),
        restart: view.number(names::RESTART_COUNT)?.unwrap_or(0).into(),
    });
    found.found()
}

/// A rank's node, and its place on it.
type Place = (usize, u32);

/// The place of each rank, or why that cannot be said.
fn deal(
    view: &View<'_>,
    ranks: Ranks,
    size_name: &str,
    nodes: &[String],
) -> Result<Result<Vec<Place>, String>, Status> {
    let counts_names = [names::STEP_TASKS_PER_NODE, names::TASKS_PER_NODE];
    let Some((counts_name, text)) = view.first_of(&counts_names) else {
        return Ok(Err("SLURM_TASKS_PER_NODE is not set".into()));
    };
    let counts = host_list::counts(text)?;
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    if counts.len() != nodes.len() || total != u64::from(ranks.size) {
        let why = format!(
            "it should have a count for each of {} nodes, and sum up to {size_name}={}",
            nodes.len(),
            ranks.size
        );
        return Err(wrong(counts_name, text, &why));
    }
    let distribution = view.variable(names::DISTRIBUTION).unwrap_or("block");
    let places = match distribution.split([',', ':']).next() {
        Some("block") => in_blocks(&counts),
        Some("cyclic") => in_turn(&counts),
        _ => {
            return Ok(Err(format!(
                "ranks are dealt out as {}",
                crate::cluster::quoted::shown(distribution)
            )));
        }
    };
    Ok(Ok(places))
}

fn in_blocks(counts: &[u32]) -> Vec<Place> {
    let block = |(node, &count): (usize, &u32)| (0..count).map(move |place| (node, place));
    counts.iter().enumerate().flat_map(block).collect()
}

fn in_turn(counts: &[u32]) -> Vec<Place> {
    let rounds = counts.iter().copied().max().unwrap_or(0);
    let round = |place: u32| {
        let with_room = counts
            .iter()
            .enumerate()
            .filter(move |(_, count)| **count > place);
        with_room.map(move |(node, _)| (node, place))
    };
    (0..rounds).flat_map(round).collect()
}

/// Refuses places of which Slurm says that `rank` is elsewhere. Rank 0 has the same place however ranks are dealt out:
/// it would take the others' places for known, while they waited for it to tell them.
fn agree(
    places: &[Place],
    rank: u32,
    (node, local): (Option<u32>, Option<u32>),
) -> Result<(), Status> {
    let Some(&(on, at)) = places.get(rank as usize) else {
        return Ok(());
    };
    let said = [
        (names::NODE_ID, node, on as u64),
        (names::LOCAL_ID, local, u64::from(at)),
    ];
    let other = said
        .iter()
        .find(|(_, said, ours)| said.is_some_and(|said| u64::from(said) != *ours));
    let Some((name, Some(said), ours)) = other else {
        return Ok(());
    };
    let why = format!(
        "rank {rank} would have {ours} there, as ranks are dealt out in blocks unless SLURM_DISTRIBUTION says \
         otherwise: set that as it was given to srun, or RENDEZ_ROOT=host:port, the same for all ranks"
    );
    Err(wrong(name, &said.to_string(), &why))
}

fn addresses(places: &[Place], nodes: &[String], port: u16) -> Result<ClusterSpec, Status> {
    debug_assert!(places.len() <= CLUSTER_TASKS_MAX);
    let addresses = places
        .iter()
        .map(|&(node, place)| {
            let port = u16::try_from(u32::from(port) + place).map_err(|_| {
                let message = format!(
                    "port {port} plus {place} is not a port: set RENDEZ_PORT to a lower one"
                );
                Status::of(catalogue::CLUSTER_ADDRESS, message)
            })?;
            HostPort::new(&nodes[node], port)
        })
        .collect::<Result<Vec<_>, Status>>()?;
    ClusterSpec::of_job(super::ranks::JOB, addresses)
}
