//! What tests of kernels measure.

/// Kilobytes that this process had at most.
pub(crate) fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let number = number.and_then(|number| number.parse().ok());
    number.expect("a peak")
}
