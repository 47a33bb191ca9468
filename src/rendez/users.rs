//! Users: whether two numbers of the kernel's mean one user.
//!
//! Floor 0. In a user namespace the kernel shows all users that have no number there as one number (65534, unless the
//! system says otherwise). That number says of no two that they are one, even if a user that has a number, this
//! process's own perhaps, has the same.

use std::fs;
use std::path::Path;

/// How many users there can be: the highest number is none.
const ALL: u64 = u32::MAX as u64;
/// What the kernel shows for a user without a number, if it does not say another.
const NAMELESS: u32 = 65_534;

/// This process's user, and what the numbers of others are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UserNumbers {
    own: u32,
    /// The number of all that have none here; without it, each user has its own.
    nameless: Option<u32>,
}

impl UserNumbers {
    /// Asks the system. Where it does not say that each user has a number, some may have none.
    pub(crate) fn read() -> Self {
        let own = rustix::process::geteuid().as_raw();
        let is_whole = match fs::read_to_string("/proc/self/uid_map") {
            Ok(map) => covers_all(&map),
            // A kernel without user namespaces; without `/proc` there is no telling.
            Err(error) => {
                error.kind() == std::io::ErrorKind::NotFound && Path::new("/proc/self").exists()
            }
        };
        let nameless = || {
            let said = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
            let said = said.and_then(|said| said.trim().parse().ok());
            said.unwrap_or(NAMELESS)
        };
        Self {
            own,
            nameless: (!is_whole).then(nameless),
        }
    }

    /// Users of which each has a number, and this process's is `own`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn named(own: u32) -> Self {
        Self {
            own,
            nameless: None,
        }
    }

    /// Users of which some have no number and are shown as `nameless`, and this process's is `own`.
    #[cfg(test)]
    pub(crate) const fn within(own: u32, nameless: u32) -> Self {
        Self {
            own,
            nameless: Some(nameless),
        }
    }

    /// The effective user of this process.
    pub(crate) const fn own(self) -> u32 {
        self.own
    }

    /// True if `user` is this process's own.
    pub(crate) fn is_own(self, user: u32) -> bool {
        self.are_one(user, self.own)
    }

    /// True if both numbers mean one user.
    pub(crate) fn are_one(self, user: u32, other: u32) -> bool {
        user == other && !self.is_nameless(user)
    }

    /// True of the number that users without one are shown as.
    pub(crate) fn is_nameless(self, user: u32) -> bool {
        self.nameless == Some(user)
    }
}

/// True if `map`, a `uid_map`, gives a number to every user. It holds only users that have one in the namespace around
/// it, and none twice; so one that is whole lies in none but whole ones.
fn covers_all(map: &str) -> bool {
    let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() == ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_whole_if_each_user_has_a_number() {
        for whole in [
            "         0          0 4294967295\n",
            "0 1 1\n1 0 1\n2 2 4294967293\n",
        ] {
            assert!(covers_all(whole), "{whole}");
        }
        for part in [
            "",
            "     65534       1001          1\n",
            "0 100000 65536\n",
            "0 0 4294967294\n",
            "no map",
        ] {
            assert!(!covers_all(part), "{part}");
        }
    }

    #[test]
    fn the_number_of_the_nameless_means_no_user() {
        let nobody = UserNumbers::named(65_534);
        assert!(nobody.is_own(65_534) && !nobody.is_own(1001));
        let within = UserNumbers::within(65_534, 65_534);
        assert!(!within.is_own(65_534) && !within.are_one(65_534, 65_534));
        assert!(UserNumbers::within(0, 65_534).is_own(0));
    }
}
