//! Foreign text as quoted in a message: short, and on one line.
//!
//! Knows nothing of what the text should have been.

/// Characters of a foreign text that a message repeats: enough to find it again.
const SHOWN: usize = 120;

/// `text` without control characters, and cut if it is absurdly long.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == SHOWN {
            return format!("{shown}… ({} bytes)", text.len());
        }
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
