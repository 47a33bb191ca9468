//! The choice between a Unix address and TCP, by what both sides demand and by their boots.

use rendez_proto as proto;

use super::{GreetingTerms, Rung};
use crate::control::hello;
use crate::control::refusal::Refusal;
use crate::control::transport::{Path, PathWish};
use crate::ground::{Code, catalogue};

/// What the dialler demands: one of the transports that are known here.
pub(super) fn demand_of(hello: &proto::Hello, rungs: &[Rung]) -> Result<PathWish, Refusal> {
    let number = u32::try_from(hello.path).unwrap_or(u32::MAX);
    let known = [Path::Shm, Path::Tcp]
        .into_iter()
        .chain(rungs.iter().map(|rung| rung.path));
    match known.into_iter().find(|path| path.number() == number) {
        Some(path) => Ok(PathWish::only(path)),
        None if number == 0 => Ok(PathWish::Auto),
        None if number == Path::Verbs.number() => Ok(PathWish::Verbs),
        None => Err(refused(format!(
            "{} demands transport {number}, which this release does not know; run the same release on both sides",
            hello.task
        ))),
    }
}

/// Whether the dialler is to be sent to our Unix address, by both sides' demands and the evidence of the boots. That
/// the boots are one says only where to try: what proves one machine is that descriptors come through there.
pub(super) fn is_elsewhere(
    hello: &proto::Hello,
    theirs: PathWish,
    terms: GreetingTerms<'_>,
) -> Result<bool, Refusal> {
    let is_near = !hello.machine.is_empty() && hello.machine == terms.machine;
    let (own, task) = (terms.own, &hello.task);
    match (theirs.demanded(), terms.wish.demanded()) {
        (Some(Path::Tcp), Some(Path::Shm)) => Err(refused(format!(
            "{own} demands shared memory; {task} demands TCP, or has not reached the Unix address of {own}"
        ))),
        // A dialler that found TCP to be the only way may not have considered what we demand: its offers tell.
        (Some(Path::Tcp), Some(ours)) if ours != Path::Tcp && !hello.no_shm.is_empty() => Ok(false),
        (Some(theirs), Some(ours)) if theirs != ours => Err(refused(format!(
            "{task} demands {}, and {own} demands {}",
            theirs.title(),
            ours.title()
        ))),
        (Some(Path::Shm), _) | (_, Some(Path::Shm)) if terms.machine.is_empty() => {
            Err(refused(format!(
                "shared memory is demanded, but {own} cannot tell where {task} runs: {}",
                hello::NO_BOOT
            )))
        }
        (Some(Path::Shm), _) | (_, Some(Path::Shm)) if hello.machine.is_empty() => {
            Err(refused(format!(
                "shared memory is demanded, but {task} does not say where it runs: it cannot read its boot_id"
            )))
        }
        (Some(Path::Shm), _) | (_, Some(Path::Shm)) if !is_near => Err(refused(format!(
            "shared memory is demanded, but {task} and {own} run on two machines: their boots differ"
        ))),
        (Some(path), _) | (_, Some(path)) => Ok(!path.is_far()),
        (None, None) => Ok(is_near),
    }
}

/// Refuses a dialler at our Unix address if we demand a path over the network. Observers hand nothing over.
pub(super) fn may_be_near(hello: &proto::Hello, terms: GreetingTerms<'_>) -> Result<(), Refusal> {
    match terms.wish.demanded().filter(|path| path.is_far()) {
        Some(path) if !hello::is_observer(&hello.task) => Err(refused(format!(
            "{} demands {}, and {} came to its Unix address",
            terms.own,
            path.title(),
            hello.task
        ))),
        _ => Ok(()),
    }
}

fn refused(why: String) -> Refusal {
    Refusal::fatal(Code::FailedPrecondition, catalogue::PATH_REFUSED, why)
}
