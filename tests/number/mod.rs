//! Numbers that a run of tests is given in its environment. What is none ends the test: else a mistyped `SEEDS` would
//! pass as the usual run.

/// The number of this name, if there is one.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name}={} is no number", text.display())))
}

/// How many of something there shall be: none would show nothing.
pub(crate) fn count(name: &str, usual: u64) -> u64 {
    let count = number(name).unwrap_or(usual);
    assert!(count > 0, "{name}=0 tests nothing");
    count
}
