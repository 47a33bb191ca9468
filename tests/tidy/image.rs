//! The image: `scripts/release/Containerfile` copies every member of the workspace. Without one of them cargo cannot
//! read the workspace, and builds nothing.

/// The members that `manifest` lists and no `COPY` line of `containerfile` brings along.
pub(crate) fn missing<'a>(manifest: &'a str, containerfile: &str) -> Vec<&'a str> {
    let copied: Vec<&str> = containerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"))
        .filter_map(|line| line.trim().rsplit_once(' '))
        .flat_map(|(sources, _)| sources.split_whitespace())
        .collect();
    let is_copied = |member: &str| {
        copied.iter().any(|folder| {
            member
                .strip_prefix(folder)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    members(manifest)
        .filter(|member| !is_copied(member))
        .collect()
}

/// The members of the workspace, as its manifest lists them.
pub(crate) fn members(manifest: &str) -> impl Iterator<Item = &str> {
    let list = manifest
        .split_once("\nmembers = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2)
}
