//! What a figure was measured on: processor, cores, kernel, pages. Also which cores a measurement should take.
//!
//! Knows nothing of what is measured. Everything is read from `/proc` and `/sys` as far as they tell; what they do not
//! tell is left out rather than guessed.

use std::fs;
use std::path::Path;

use super::error::CliError;
use rendez::memory::groups;

/// A description of this machine, for a report to carry along.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Processors that are online.
    pub cores: usize,
    /// Processors that this process may run on.
    pub affinity: Vec<usize>,
    /// True under a hypervisor: tails are then the host's as much as ours.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
    /// Huge pages.
    pub huge_pages: HugePages,
    /// The frequency governor, where the kernel has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Bytes of main memory.
    pub memory_bytes: u64,
}

/// What the machine has of huge pages.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct HugePages {
    /// Bytes of one reserved huge page.
    pub page_bytes: u64,
    /// Reserved.
    pub total: u64,
    /// Reserved and free.
    pub free: u64,
    /// The setting of transparent huge pages for shared memory: `always`, `within_size`, `advise`, `never`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<String>,
}

impl Machine {
    /// Reads the description.
    #[must_use]
    pub fn read() -> Self {
        let (info, memory) = (text("/proc/cpuinfo"), text("/proc/meminfo"));
        let chosen = text("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        Self {
            cpu: field(&info, "model name").unwrap_or("unknown").to_owned(),
            cores: info
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count()
                .max(1),
            affinity: affinity(),
            virtual_machine: field(&info, "flags")
                .is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            huge_pages: HugePages {
                page_bytes: kibibytes(&memory, "Hugepagesize"),
                total: field(&memory, "HugePages_Total")
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0),
                free: field(&memory, "HugePages_Free")
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0),
                shared_memory: chosen.split(['[', ']']).nth(1).map(str::to_owned),
            },
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|text| text.trim().to_owned()),
            memory_bytes: kibibytes(&memory, "MemTotal"),
        }
    }

    /// The description in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let affinity: Vec<String> = self.affinity.iter().map(usize::to_string).collect();
        format!(
            "{}{}, {} cores (may use {}), Linux {}, huge pages {}, governor {}",
            self.cpu,
            if self.virtual_machine {
                " (virtual)"
            } else {
                ""
            },
            self.cores,
            affinity.join(","),
            self.kernel,
            match self.huge_pages.total {
                0 => "none reserved".to_owned(),
                total => format!("{} of {total} free", self.huge_pages.free),
            },
            self.governor.as_deref().unwrap_or("unknown"),
        )
    }
}

/// The two cores that a measurement between two processes takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The measuring side's core.
    pub near: usize,
    /// The other side's core; the same where there is only one.
    pub far: usize,
    /// What a reader must know of the choice.
    pub note: Option<&'static str>,
}

impl Pair {
    /// True where both sides share a core, and so must take turns.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.near == self.far
    }
}

/// The processors that this process may run on, ascending; empty if the kernel does not say.
#[must_use]
pub fn affinity() -> Vec<usize> {
    let mut cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    cores.sort_unstable();
    cores
}

/// The first two cores of the affinity mask that are not two threads of one core.
///
/// # Errors
/// `AFFINITY_UNKNOWN` if the mask cannot be read.
pub fn pair() -> Result<Pair, CliError> {
    let sibling = |core: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        cpu_list(&text(&path))
    };
    choose(&affinity(), sibling).ok_or_else(|| {
        let message = "the cores of this process cannot be read (sched_getaffinity); allow that call to measure";
        CliError::failure("AFFINITY_UNKNOWN", message)
    })
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// `PINNING_REFUSED`.
pub fn pin(core: usize) -> Result<(), CliError> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        return Ok(());
    }
    let message = format!(
        "cannot pin to core {core} (sched_setaffinity); run with that core in the affinity mask"
    );
    Err(CliError::failure("PINNING_REFUSED", message))
}

/// Bytes that can still be taken without swapping, and before a control group of this process (of cgroup v2) is
/// full; zero if the kernel does not say.
#[must_use]
pub fn available_bytes() -> u64 {
    available_under(Path::new("/"))
}

fn available_under(root: &Path) -> u64 {
    let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let free = Some(kibibytes(&info, "MemAvailable")).filter(|free| *free > 0);
    let room = groups::room(root).map(|room| room.left.max(1));
    free.into_iter().chain(room).min().unwrap_or(0)
}

fn choose(cores: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Option<Pair> {
    let near = *cores.first()?;
    let beside = siblings(near);
    let apart = cores[1..].iter().find(|core| !beside.contains(core));
    Some(match (apart, cores.get(1)) {
        (Some(&far), _) => Pair {
            near,
            far,
            note: None,
        },
        (None, Some(&far)) => Pair {
            near,
            far,
            note: Some("both sides are hardware threads of one core"),
        },
        (None, None) => Pair {
            near,
            far: near,
            note: Some("only one core may be used: the two sides take turns on it"),
        },
    })
}

/// `0-2,8` as 0, 1, 2, 8. What is no number is left out.
pub(super) fn cpu_list(text: &str) -> Vec<usize> {
    let span = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(span).flatten().collect()
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    };
    text.lines().find_map(line)
}

/// The value of a line `name: 123 kB`, in bytes; zero if there is none.
fn kibibytes(text: &str, name: &str) -> u64 {
    let value = field(text, name).and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    value.unwrap_or(0).saturating_mul(1024)
}

fn text(path: &str) -> String {
    read(path).unwrap_or_default()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_are_not_siblings_come_first() {
        let siblings = |core: usize| vec![core / 2 * 2, core / 2 * 2 + 1];
        assert_eq!(
            choose(&[0, 1, 2, 3], siblings),
            Some(Pair {
                near: 0,
                far: 2,
                note: None
            })
        );
        assert!(choose(&[2, 3], siblings).is_some_and(|pair| pair.far == 3 && pair.note.is_some()));
        assert!(choose(&[5], siblings).is_some_and(|pair| pair.is_shared() && pair.note.is_some()));
        assert_eq!(choose(&[], siblings), None);
    }

    #[test]
    fn lists_of_cores_read() {
        assert_eq!(cpu_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(cpu_list("x"), Vec::<usize>::new());
    }

    #[test]
    fn fields_read() {
        let memory = "MemTotal:       16 kB\nHugePages_Total:       3\n";
        assert_eq!(kibibytes(memory, "MemTotal"), 16_384);
        assert_eq!(field(memory, "HugePages_Total"), Some("3"));
        assert_eq!(kibibytes(memory, "MemFree"), 0);
    }

    #[test]
    fn a_control_group_has_less_room_than_its_machine() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(available_under(root.path()), 0, "nothing is known");
        write("proc/meminfo", "MemAvailable: 4096 kB\n");
        assert_eq!(available_under(root.path()), 4 << 20);
        write("proc/self/cgroup", "0::/pod\n");
        write("sys/fs/cgroup/pod/memory.max", "1048576\n");
        write("sys/fs/cgroup/pod/memory.current", "1000000\n");
        assert_eq!(available_under(root.path()), 48_576);
        write("sys/fs/cgroup/pod/memory.current", "2000000\n");
        assert_eq!(available_under(root.path()), 1, "known, and none");
    }

    #[test]
    fn this_machine_has_a_core_and_a_kernel() {
        let machine = Machine::read();
        assert!(!machine.affinity.is_empty() && machine.cores >= 1 && !machine.kernel.is_empty());
        assert!(machine.line().contains(&machine.kernel));
    }
}
