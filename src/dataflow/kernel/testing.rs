//! What tests of kernels measure.

/// Kilobytes that this process had at most while `work` went on, more than before. What tests before this one took
/// counts no more.
pub(crate) fn grown(work: impl FnOnce()) -> usize {
    std::fs::write("/proc/self/clear_refs", "5").expect("the most is what it has now");
    let before = peak();
    work();
    peak().saturating_sub(before)
}

fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let number = number.and_then(|number| number.parse().ok());
    number.expect("a peak")
}
