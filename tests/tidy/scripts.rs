//! Scripts: a pipe that ends in `grep -q` fails by chance under `pipefail`. `grep` ends at its first hit, what writes
//! to it is ended by a signal if it has more to say, and the pipe counts as failed although the line was found.

/// The lines of a script, from one, that take such a pipe for an answer.
pub(crate) fn hasty_greps(script: &str) -> Vec<usize> {
    if !script.contains("pipefail") {
        return Vec::new();
    }
    let lines = script.lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim_start().starts_with('#'))
        .filter(|(_, line)| {
            let commands = line.replace("||", "&&");
            commands.split('|').skip(1).any(is_hasty)
        })
        .map(|(at, _)| at + 1)
        .collect()
}

fn is_hasty(command: &str) -> bool {
    let mut words = command.split_whitespace();
    words.next() == Some("grep")
        && words
            .take_while(|word| word.starts_with('-'))
            .any(|word| word == "--quiet" || (!word.starts_with("--") && word.contains('q')))
}
