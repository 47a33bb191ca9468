//! MPI: Open MPI's variables, PMIx, and Hydra's (MPICH, Intel MPI, MVAPICH).
//!
//! They tell rank and size, and nothing of addresses: rank 0 is found where `RENDEZ_ROOT` or `MASTER_ADDR` says, on
//! this machine if all ranks are here, or on the first node of the Slurm allocation that `mpirun` spreads over.

use super::ranks::{Ranks, rootless};
use super::slurm::OWN_STEPS;
use super::{Answer, Epoch, Local, View, absent};
use crate::cluster::variables::{mpi as names, slurm, torchrun};
use crate::cluster::{HostPort, host_list};
use crate::ground::Status;

/// Where one family of launchers says what.
struct Family {
    who: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        who: "Open MPI",
        rank: names::OMPI_RANK,
        size: names::OMPI_SIZE,
        local_rank: names::OMPI_LOCAL_RANK,
        local_size: names::OMPI_LOCAL_SIZE,
    },
    Family {
        who: "Hydra",
        rank: names::PMI_RANK,
        size: names::PMI_SIZE,
        local_rank: names::HYDRA_LOCAL_RANK,
        local_size: names::HYDRA_LOCAL_SIZE,
    },
];

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    let said = |family: &&Family| {
        view.variable(family.rank).is_some() && view.variable(family.size).is_some()
    };
    let Some(family) = FAMILIES.iter().find(said) else {
        return absent(if view.variable(names::PMIX_RANK).is_some() {
            "PMIX_RANK is set, but nothing beside it says how many ranks there are"
        } else {
            "neither OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE nor PMI_RANK and PMI_SIZE are set"
        });
    };
    // `srun` sets PMI's variables too, and knows the nodes. Hydra may start its proxies by `srun`, whose step the ranks
    // inherit; only Hydra says which rank of its machine each is.
    if family.rank == names::PMI_RANK
        && view.variable(names::HYDRA_LOCAL_RANK).is_none()
        && let Some(step) = view.number(slurm::STEP_ID)?
        && step < OWN_STEPS
    {
        return absent("PMI_RANK is set by srun, which says more itself");
    }
    let rank = view.number(family.rank)?.unwrap_or(0);
    let size = view.number(family.size)?.unwrap_or(0);
    let ranks = Ranks::new((family.rank, rank), (family.size, size))?;
    let local_size = view.number(family.local_size)?;
    let (root, note) = root(view, ranks, family.who, local_size)?;
    let mut found = ranks.rooted(root, format!("{} and {}", family.rank, family.size))?;
    found.notes.extend(note);
    found.local = view.number(family.local_rank)?.map(|rank| Local {
        rank,
        size: local_size,
    });
    found.epoch = view.variable(names::PMIX_NAMESPACE).map(|run| Epoch {
        run: run.to_owned(),
        restart: 0,
    });
    found.found()
}

fn root(
    view: &View<'_>,
    ranks: Ranks,
    who: &str,
    local_size: Option<u32>,
) -> Result<(HostPort, Option<String>), Status> {
    if let Some(root) = view.root()? {
        return Ok((root, None));
    }
    let port = view.port()?;
    if let Some(host) = view.variable(torchrun::MASTER_ADDR) {
        let note = format!("rank 0 is on MASTER_ADDR {host}");
        return Ok((HostPort::new(host, port)?, Some(note)));
    }
    if local_size == Some(ranks.size) || ranks.size == 1 {
        let note = "all ranks are on this machine".to_owned();
        return Ok((HostPort::new("127.0.0.1", port)?, Some(note)));
    }
    if let Some((name, nodes)) = view.first_of(&[slurm::JOB_NODES, slurm::NODES])
        && let Some(first) = host_list::expand(nodes)?.first()
    {
        let note = format!("rank 0 is taken to be on {first}, the first of {name}");
        return Ok((HostPort::new(first, port)?, Some(note)));
    }
    Err(rootless(ranks, who, "the ranks are on several machines"))
}
