//! Rungs: the transports that are tried over TCP, the best first, and why each was not taken.

use super::{Agreed, GreetingTerms};
use crate::control::peer::PeerHello;
use crate::control::refusal::{Refusal, clip};
use crate::control::transport::{Lack, Path};
use crate::ground::{Code, catalogue};

/// One transport that is offered, and why it is unavailable here, if it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rung {
    pub(crate) path: Path,
    pub(crate) lack: Option<Lack>,
}

/// Why a transport is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct No {
    pub(crate) why: String,
    /// It should work, and does not, or stands idle.
    pub(crate) fell_back: bool,
    /// The same may succeed later.
    pub(crate) retry: bool,
}

/// The rungs of one greeting, and what became of each.
#[derive(Debug)]
pub(super) struct Rungs(Vec<(Rung, Option<No>)>);

impl No {
    fn for_good(why: String, fell_back: bool) -> Self {
        Self {
            why,
            fell_back,
            retry: false,
        }
    }

    /// It was tried and did not work.
    pub(super) fn tried(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            fell_back: true,
            retry: true,
        }
    }

    /// The peer's no.
    pub(super) fn said(task: &str, no: &str) -> Self {
        Self::tried(format!("{task} says: {}", clip(no)))
    }

    /// As it is said: never empty, which would be a yes.
    pub(super) fn aloud(&self) -> String {
        match self.why.as_str() {
            "" => "no reason".into(),
            why => clip(why),
        }
    }
}

impl Rungs {
    pub(super) fn new(rungs: Vec<Rung>) -> Self {
        Self(rungs.into_iter().map(|rung| (rung, None)).collect())
    }

    /// Judges by what both have said so far which are worth a try.
    pub(super) fn judge(&mut self, peer: &PeerHello, terms: GreetingTerms<'_>) {
        for (rung, no) in &mut self.0 {
            *no = unable(rung, peer, terms);
        }
    }

    /// The best that is still to be tried.
    pub(super) fn next(&self) -> Option<Path> {
        let open = self.0.iter().find(|(_, no)| no.is_none());
        open.map(|(rung, _)| rung.path)
    }

    /// Why this one is not to be tried.
    pub(super) fn find(&self, number: u32) -> Option<(Path, Option<&No>)> {
        let found = self
            .0
            .iter()
            .find(|(rung, _)| rung.path.number() == number)?;
        Some((found.0.path, found.1.as_ref()))
    }

    /// This one is not taken.
    pub(super) fn fail(&mut self, path: Path, no: No) {
        for (rung, before) in &mut self.0 {
            if rung.path == path {
                *before = Some(no.clone());
            }
        }
    }

    /// The dialler did not ask for those that are left; what it told says why.
    pub(super) fn not_asked(&mut self, task: &str, told: &str) {
        for (rung, no) in &mut self.0 {
            no.get_or_insert_with(|| match told {
                "" => No::for_good(
                    format!("{task} did not ask for {}", rung.path.title()),
                    false,
                ),
                told => No::said(task, told),
            });
        }
    }

    /// If one is demanded: the end of the greeting, for it is not taken.
    pub(super) fn demanded(&self, task: &str, terms: GreetingTerms<'_>) -> Result<(), Refusal> {
        let Some(path) = terms.wish.demanded().filter(|path| *path != Path::Tcp) else {
            return Ok(());
        };
        let no = self
            .0
            .iter()
            .find(|(rung, _)| rung.path == path)
            .and_then(|(_, no)| no.as_ref());
        let why = no.map_or("this task has none", |no| &no.why);
        let message = format!("{} is demanded to {task}: {why}", path.title());
        Err(match no.is_some_and(|no| no.retry) {
            true => Refusal::later(catalogue::PATH_REFUSED, message),
            false => Refusal::fatal(Code::FailedPrecondition, catalogue::PATH_REFUSED, message),
        })
    }

    /// Why all of them are not taken: for people. One reason of several is told once.
    pub(super) fn why(&self) -> String {
        let mut whys: Vec<&str> = Vec::new();
        for (_, no) in &self.0 {
            let why = no.as_ref().map_or("", |no| &no.why);
            if !why.is_empty() && !whys.contains(&why) {
                whys.push(why);
            }
        }
        whys.join("; ")
    }

    /// The agreement on `path`, for a reason of its own or else for want of a better one.
    pub(super) fn agreed(&self, peer: &PeerHello, path: Path, why: Option<String>) -> Agreed {
        let better = self.0.iter().take_while(|(rung, _)| rung.path != path);
        let fallen = |(_, no): &&(Rung, Option<No>)| no.as_ref().is_some_and(|no| no.fell_back);
        Agreed {
            peer: peer.clone(),
            read_domain: false,
            path,
            why: why.unwrap_or_else(|| self.why()),
            fell_back: better.filter(fallen).map(|(rung, _)| rung.path).next(),
        }
    }
}

/// Why there is nothing to try.
fn unable(rung: &Rung, peer: &PeerHello, terms: GreetingTerms<'_>) -> Option<No> {
    let title = rung.path.title();
    if let Some(other) = terms.wish.demanded().filter(|path| *path != rung.path) {
        let why = format!("{} is demanded here", other.title());
        return Some(No::for_good(why, false));
    }
    if let Some(lack) = &rung.lack {
        let why = format!("no {title} here: {}", lack.why);
        return Some(No::for_good(why, lack.is_fault));
    }
    if peer.abilities & rung.path.ability() != 0 {
        return None;
    }
    let number = rung.path.number();
    let lack = peer.lacks.iter().find(|(of, _)| *of == number);
    let why = lack.map_or("its release knows none", |(_, why)| why);
    Some(No::for_good(format!("no {title} there: {why}"), true))
}
