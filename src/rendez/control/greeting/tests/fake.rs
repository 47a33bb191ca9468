//! A side that answers from plain values, and fails where it is told to.

use rendez_proto as proto;

use super::{Expected, Job, Lack, Path, PathWish, PeerHello, Refusal, Rung, Side};
use crate::control::config::ControlConfig;
use crate::control::exchange::Works;
use crate::control::hello::{self, Evidence, Identity};
use crate::ground::{Code, Incarnation};
use crate::users::UserNumbers;

/// A transport that no release knows.
pub(super) const OTHER: Path = Path::new(9, "other", "the other", ["other_here", "other_there"]);

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Judge,
    Admit,
    Count,
    Channels,
    Gather,
    Pass,
    Take,
    Link,
    Expect,
    Open,
    Connect,
    Prove,
    Dial,
    Sockets,
}

impl Fault {
    pub(super) const ALL: [Self; 14] = [
        Self::Judge,
        Self::Admit,
        Self::Count,
        Self::Channels,
        Self::Gather,
        Self::Pass,
        Self::Take,
        Self::Link,
        Self::Expect,
        Self::Open,
        Self::Connect,
        Self::Prove,
        Self::Dial,
        Self::Sockets,
    ];
    /// Those of a transport that is offered, after which the next is tried.
    pub(super) const OF_OFFERS: [Self; 3] = [Self::Open, Self::Connect, Self::Prove];
}

#[derive(Debug)]
pub(super) struct Fake {
    config: ControlConfig,
    pub(super) is_near: bool,
    pub(super) machine: &'static str,
    pub(super) asks: PathWish,
    pub(super) no_shm: &'static str,
    pub(super) answers_as: Option<&'static str>,
    pub(super) rungs: Vec<Rung>,
    pub(super) fault: Option<Fault>,
    /// What it says where it fails; nothing for a no for good.
    pub(super) no: Option<Refusal>,
    pub(super) channels: u32,
    pub(super) counted: bool,
    /// Batches that were passed, and that were taken.
    passed: u32,
    pub(super) taken: u32,
    has_ends: bool,
    pub(super) jobs: Vec<String>,
    job: Option<Result<(), Refusal>>,
}

impl Fake {
    pub(super) const BATCHES: u32 = 3;

    fn new(task: &str, incarnation: u64, is_near: bool, paths: &[Path]) -> Self {
        let rung = |path: &Path| Rung {
            path: *path,
            lack: None,
        };
        Self {
            config: ControlConfig::new(task, Incarnation(incarnation), 1),
            is_near,
            machine: "",
            asks: PathWish::Auto,
            no_shm: "",
            answers_as: None,
            rungs: paths.iter().map(rung).collect(),
            fault: None,
            no: None,
            channels: 2,
            counted: false,
            passed: 0,
            taken: 0,
            has_ends: false,
            jobs: Vec::new(),
            job: None,
        }
    }

    /// A dialler called `a`, and an acceptor called `b`, of two machines unless they are near.
    pub(super) fn pair(is_near: bool, paths: &[Path]) -> [Self; 2] {
        [("a", 1), ("b", 2)].map(|(task, life)| Self::new(task, life, is_near, paths))
    }

    pub(super) fn name(&self) -> &'static str {
        "b"
    }

    /// How the job ends.
    pub(super) fn finish(&mut self) -> Result<(), Refusal> {
        self.job.take().expect("a job was begun")
    }

    fn at(&self, fault: Fault) -> Result<(), Refusal> {
        match self.fault == Some(fault) {
            true => {
                let message = format!("{fault:?} of {} fails", self.config.task);
                let for_good = Refusal::fatal(Code::ResourceExhausted, "PEER_REFUSED", message);
                Err(self.no.clone().unwrap_or(for_good))
            }
            false => Ok(()),
        }
    }

    fn identity(&self) -> Identity {
        Identity {
            users: UserNumbers::named(1),
            machine: self.machine.into(),
        }
    }
}

impl Side for Fake {
    fn hello(&self, dialled: &str) -> proto::Hello {
        let mut hello = hello::our_hello(&self.config, &self.identity(), dialled);
        if let Some(name) = self.answers_as {
            hello.task = name.into();
        }
        for rung in &self.rungs {
            match &rung.lack {
                None => hello.abilities |= rung.path.ability(),
                Some(Lack { why, .. }) => hello.lacks.push(proto::Lack {
                    transport: rung.path.number(),
                    why: why.clone(),
                }),
            }
        }
        if !dialled.is_empty() {
            let asks = match (self.asks, self.no_shm) {
                (PathWish::Auto, "") => PathWish::Auto,
                (PathWish::Auto, _) => PathWish::Tcp,
                (asks, _) => asks,
            };
            hello.path = asks.number() as i32;
            hello.no_shm = self.no_shm.into();
        }
        hello
    }

    fn judge(&self, hello: &proto::Hello) -> Result<(PeerHello, bool), Refusal> {
        self.at(Fault::Judge)?;
        hello::judge(hello, &self.config, &self.identity(), Evidence::Network)
    }

    fn admit(&mut self, _: &PeerHello) -> Result<(), Refusal> {
        self.at(Fault::Admit)
    }

    fn count(&mut self, _: &PeerHello) -> Result<(), Refusal> {
        self.at(Fault::Count)?;
        self.counted = true;
        Ok(())
    }

    fn near_address(&self) -> String {
        format!("unix:@{}", self.config.task)
    }

    fn rungs(&self) -> Vec<Rung> {
        self.rungs.clone()
    }

    fn channels(&self, _: &PeerHello) -> Result<u32, Refusal> {
        self.at(Fault::Channels).map(|()| self.channels)
    }

    fn gather(&mut self, _: &PeerHello, _: bool) -> Result<(), Refusal> {
        self.at(Fault::Gather)
    }

    fn pass(&mut self, _: &PeerHello) -> Result<proto::Descriptors, Refusal> {
        self.at(Fault::Pass)?;
        self.passed += 1;
        Ok(proto::Descriptors {
            batch: self.passed,
            entries: Vec::new(),
            last: self.passed == Self::BATCHES,
        })
    }

    fn take(&mut self, _: &PeerHello, _: bool, batch: proto::Descriptors) -> Result<(), Refusal> {
        self.at(Fault::Take)?;
        self.taken = batch.batch;
        Ok(())
    }

    fn accept_link(&mut self, _: &PeerHello) -> Result<(), Refusal> {
        self.at(Fault::Link)
    }

    fn ends(&self) -> (Vec<Vec<u8>>, String) {
        assert!(self.has_ends, "asked of ends that are there");
        let ends = vec![vec![7]; self.channels as usize];
        (ends, format!("the card of {}", self.config.task))
    }

    fn drop_ends(&mut self) {
        self.has_ends = false;
    }

    fn expect(&mut self, _: u32) -> Result<proto::DataOpenReply, Refusal> {
        self.at(Fault::Expect)?;
        Ok(proto::DataOpenReply {
            ticket: vec![1; 16],
            expires_ms: 5,
        })
    }

    fn begin(&mut self, job: Job) {
        let (name, done) = match job {
            Job::Open(path, _) => (format!("open {path:?}"), self.at(Fault::Open)),
            Job::Connect(_) => ("connect".into(), self.at(Fault::Connect)),
            Job::Prove => ("prove".into(), self.at(Fault::Prove)),
            Job::Dial(Expected { id, channels, .. }) => {
                let is_expected = id == [1; 16] && channels == self.channels;
                let another = || {
                    Err(Refusal::fatal(
                        Code::NotFound,
                        "PEER_REFUSED",
                        "no such ticket",
                    ))
                };
                let done = is_expected.then(|| self.at(Fault::Dial));
                ("dial".into(), done.unwrap_or_else(another))
            }
            Job::Gather => ("gather".into(), self.at(Fault::Sockets)),
        };
        self.has_ends = done.is_ok() && !matches!(name.as_str(), "dial" | "gather");
        self.jobs.push(name);
        self.job = Some(done);
    }
}

impl Works for Fake {
    async fn done(&mut self) -> Result<(), Refusal> {
        self.finish()
    }
}
