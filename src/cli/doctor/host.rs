//! What is looked at: the files under `/proc` and `/sys`, and what the system says when it is asked.
//!
//! Knows no verdict. The files lie under a root, so that a test can lay out a machine of its own.

use std::path::{Path, PathBuf};

use rendez::control::{RuntimeKind, probe};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, MemoryError, Pool};
use rustix::process::Resource;
use rustix::thread::CapabilitySet;

use crate::itself::ITSELF;
use crate::machine;

/// A machine, as this process sees it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) root: PathBuf,
    /// Cores this process may run on.
    pub(super) affinity: Vec<usize>,
    /// Bytes that may be locked; `None` is no limit.
    pub(super) memlock_bytes: Option<u64>,
    /// Whether the process may lock more than that.
    pub(super) may_lock: bool,
    /// Bytes of addresses that the process may have; `None` is no limit.
    pub(super) address_bytes: Option<u64>,
    /// Threads that the user may have, processes among them; `None` is no limit.
    pub(super) threads: Option<u64>,
    /// Whether this program can start itself again.
    pub(super) has_proc: bool,
    /// Open files allowed, now and at most; `None` is no limit.
    pub(super) descriptors: (Option<u64>, Option<u64>),
    /// Why sealed shared memory is unavailable.
    pub(super) memfd_refusal: Option<String>,
    /// Why the control plane runs on poll.
    pub(super) ring_refusal: Option<String>,
    /// Why libibverbs cannot be loaded.
    pub(super) verbs_refusal: Option<String>,
    /// The devices whose memory tensors can lie in, or why there are none.
    pub(super) devices: Result<Vec<String>, String>,
    /// Why the kernel keeps no TLS records.
    pub(super) tls_refusal: Option<String>,
}

impl Host {
    /// This one.
    pub(super) fn read() -> Self {
        let files = rustix::process::getrlimit(Resource::Nofile);
        let now = |resource| rustix::process::getrlimit(resource).current;
        let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
        let has = |capability| effective.is_ok_and(|effective| effective.contains(capability));
        let is_bound = !has(CapabilitySet::SYS_RESOURCE) && !has(CapabilitySet::SYS_ADMIN);
        Self {
            root: "/".into(),
            affinity: machine::affinity(),
            memlock_bytes: now(Resource::Memlock),
            may_lock: has(CapabilitySet::IPC_LOCK),
            address_bytes: now(Resource::As),
            threads: now(Resource::Nproc).filter(|_| is_bound),
            has_proc: Path::new(ITSELF).exists(),
            descriptors: (files.current, files.maximum),
            memfd_refusal: memfd().err().map(|error| error.to_string()),
            ring_refusal: Some(probe(None))
                .filter(|report| report.kind == RuntimeKind::Poll)
                .map(|report| report.why),
            verbs_refusal: rendez::fabric::verbs::sys::table()
                .err()
                .map(|error| error.to_string()),
            devices: devices(),
            tls_refusal: rendez::fabric::kernel_tls()
                .err()
                .map(|missing| missing.to_string()),
        }
    }

    /// A file's text without the blanks around it, if it can be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.at(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// What a link points to.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.at(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// The names in a directory, in order.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether there is such a file.
    pub(super) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The value of a line `name: value`.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let value = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        };
        text.lines().find_map(value)
    }

    /// The files called `name` of this process's control group and those above it, nearest first: of the unified
    /// hierarchy, or of the `controller`'s own.
    pub(super) fn of_group(&self, controller: &str, name: &str) -> Vec<String> {
        let files = rendez::memory::groups::files(&self.root, controller, name);
        files.into_iter().map(|(_, text)| text).collect()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// Makes a segment as the engine does, and gives it back.
fn memfd() -> Result<(), MemoryError> {
    let usual = ArenaConfig::default();
    let config = ArenaConfig {
        bytes_max: usual.segment_bytes as u64,
        // Those that the machine keeps are for engines.
        huge_pages: HugePages::Off,
        ..usual
    };
    Pool::new(ArenaId(0), config).map(drop)
}

/// Each device with what it cannot do.
fn devices() -> Result<Vec<String>, String> {
    let library = std::env::var("RENDEZ_DEVICE_LIBRARY").ok();
    let accelerator = rendez::memory::accelerator::open(library.as_deref())?;
    let lacks = |can: bool, what: &str| {
        if can {
            String::new()
        } else {
            format!(", {what}")
        }
    };
    let devices = accelerator.devices().iter().map(|info| {
        format!(
            "{} {}{}{}",
            info.name,
            info.uuid,
            lacks(info.exports, "memory cannot be exported: no lease"),
            lacks(
                info.has_words,
                "streams cannot write words: the host waits for them"
            )
        )
    });
    Ok(devices.collect())
}
