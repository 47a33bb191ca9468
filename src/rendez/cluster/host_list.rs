//! Slurm's short forms: lists of hosts as `node[01-04,7],login`, and counts as `2(x3),1`.
//!
//! Pure text. What a list expands to is counted before it is made, so a short list that means millions costs nothing.

use std::str::FromStr;

use super::address::is_name;
use super::quoted::shown;
use crate::ground::limits::{CLUSTER_TASKS_MAX, HOST_NAME_BYTES_MAX};
use crate::ground::{Status, catalogue};

/// The hosts of a list, in its order: `node[01-02],login` is `node01`, `node02`, `login`.
///
/// # Errors
/// `HOST_LIST_MALFORMED` says what is wrong; `HOST_LIST_TOO_LONG` for more than
/// [`CLUSTER_TASKS_MAX`] hosts.
///
/// ```
/// let hosts = rendez::cluster::host_list::expand("node[09-11],login")?;
/// assert_eq!(hosts, ["node09", "node10", "node11", "login"]);
/// # Ok::<(), rendez::ground::Status>(())
/// ```
pub fn expand(text: &str) -> Result<Vec<String>, Status> {
    let mut hosts = Vec::new();
    for item in items(text)? {
        let parts = parts(item).map_err(|why| malformed(text, &why))?;
        let longest: usize = parts.iter().map(Part::bytes_max).sum();
        if longest > HOST_NAME_BYTES_MAX {
            return Err(malformed(text, "a name is too long"));
        }
        let count = parts.iter().try_fold(1usize, |count, part| {
            count.checked_mul(usize::try_from(part.count()?).ok()?)
        });
        if count.is_none_or(|count| count > CLUSTER_TASKS_MAX - hosts.len()) {
            return Err(too_long(text));
        }
        // Never more names than the count above: each part has at least one form.
        let mut names = vec![String::new()];
        for part in &parts {
            names = names.iter().flat_map(|name| part.behind(name)).collect();
        }
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            return Err(malformed(text, &format!("'{}' is not a host", shown(name))));
        }
        hosts.append(&mut names);
    }
    Ok(hosts)
}

/// Counts with repeats: `2(x3),1` is 2, 2, 2, 1.
///
/// # Errors
/// As [`expand`].
pub fn counts(text: &str) -> Result<Vec<u32>, Status> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, Some(1u32)),
            Some((count, rest)) => (count, rest.strip_suffix(')').and_then(number)),
        };
        let (Some(count), Some(times)) = (number::<u32>(count), times) else {
            return Err(malformed(text, "a count is a number, as 2, or 2(x3)"));
        };
        if times == 0 {
            return Err(malformed(text, "a count is repeated at least once"));
        }
        if times as usize > CLUSTER_TASKS_MAX - counts.len() {
            return Err(too_long(text));
        }
        counts.extend(std::iter::repeat_n(count, times as usize));
    }
    Ok(counts)
}

/// A part of a name: itself, or what its brackets hold.
enum Part<'a> {
    Text(&'a str),
    Spans(Vec<Span>),
}

/// `01-04`: from, to, and digits with leading zeros.
struct Span {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    /// How many forms it has; `None` for more than can be counted.
    fn count(&self) -> Option<u64> {
        match self {
            Part::Text(_) => Some(1),
            Part::Spans(spans) => spans.iter().try_fold(0u64, |count, span| {
                count.checked_add((span.last - span.first).checked_add(1)?)
            }),
        }
    }

    fn bytes_max(&self) -> usize {
        match self {
            Part::Text(text) => text.len(),
            Part::Spans(spans) => spans
                .iter()
                .map(|span| span.width.max(digits(span.last)))
                .max()
                .unwrap_or(0),
        }
    }

    fn behind(&self, name: &str) -> Vec<String> {
        match self {
            Part::Text(text) => vec![format!("{name}{text}")],
            Part::Spans(spans) => spans
                .iter()
                .flat_map(|span| {
                    let width = span.width;
                    (span.first..=span.last).map(move |number| format!("{name}{number:0width$}"))
                })
                .collect(),
        }
    }
}

/// The list's items: commas within brackets do not part them.
fn items(text: &str) -> Result<Vec<&str>, Status> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in text.char_indices() {
        match (c, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[' | ']', _) => return Err(malformed(text, "its brackets do not match")),
            (',', false) => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(malformed(text, "a bracket is not closed"));
    }
    items.push(&text[start..]);
    if items.iter().any(|item| item.is_empty()) {
        return Err(malformed(text, "a host is missing beside a comma"));
    }
    Ok(items)
}

/// The parts of an item whose brackets are known to match.
fn parts(item: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = item;
    while let Some((text, behind)) = rest.split_once('[') {
        let (inner, behind) = behind.split_once(']').ok_or("a bracket is not closed")?;
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        parts.push(Part::Spans(
            inner.split(',').map(span).collect::<Result<_, _>>()?,
        ));
        // An item of nothing but brackets could be long, and every pair takes a byte of the name at least.
        if parts.len() > 2 * HOST_NAME_BYTES_MAX {
            return Err("a name is too long".into());
        }
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

fn span(text: &str) -> Result<Span, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let width = first.len();
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(format!(
            "'{}' is not a range of numbers, such as 01-04",
            shown(text)
        ));
    };
    if first > last {
        return Err(format!("the range {} runs backwards", shown(text)));
    }
    Ok(Span { first, last, width })
}

/// How many digits a number has.
fn digits(number: u64) -> usize {
    number
        .checked_ilog10()
        .map_or(1, |power| power as usize + 1)
}

/// Digits and nothing else.
fn number<N: FromStr>(text: &str) -> Option<N> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn malformed(text: &str, why: &str) -> Status {
    let message = format!(
        "'{}' is not a Slurm list: {why}; write hosts as node[01-04,7],login and counts as 2(x3),1",
        shown(text)
    );
    Status::of(catalogue::HOST_LIST_MALFORMED, message)
}

fn too_long(text: &str) -> Status {
    let message = format!(
        "'{}' means more than {CLUSTER_TASKS_MAX}, which is the limit (CLUSTER_TASKS_MAX)",
        shown(text)
    );
    Status::of(catalogue::HOST_LIST_TOO_LONG, message)
}
