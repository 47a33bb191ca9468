//! Locks: the fuzzer's workspace has one of its own, and what both name must have one version in both. Else the parsers
//! are fuzzed with other libraries than people get.

use std::collections::BTreeSet;

/// Packages, `name version`, that `other` locks at a version that `lock` does not have, though it has the package.
pub(crate) fn apart(lock: &str, other: &str) -> Vec<String> {
    let ours: BTreeSet<_> = packages(lock).collect();
    packages(other)
        .filter(|package| !ours.contains(package) && ours.iter().any(|one| one.0 == package.0))
        .map(|(name, version)| format!("{name} {version}"))
        .collect()
}

/// The packages of a lock, each with its version.
fn packages(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    lock.split("[[package]]").skip(1).filter_map(|package| {
        let field = |name: &str| {
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            value?.strip_suffix('"')
        };
        Some((field("name")?, field("version")?))
    })
}
