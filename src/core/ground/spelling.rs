//! How alike two names are: for errors that say what may have been meant.

/// Names longer than this are like no other.
const NAME_MAX: usize = 64;

/// How many bytes of `from` to add, take away or change until it is `to` (Levenshtein).
#[must_use]
pub fn distance(from: &str, to: &str) -> usize {
    if from.len().max(to.len()) > NAME_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, a) in from.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], line + 1);
        for (column, b) in to.bytes().enumerate() {
            let change = corner + usize::from(a != b);
            corner = row[column + 1];
            row[column + 1] = change.min(corner + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
