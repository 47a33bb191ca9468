//! A Rust file as tidy sees it: tokens and comments with their lines, strings as strings, tests marked.
//!
//! Knows no rule. It is a lexer and not a parser: it only has to tell code from comments and text from both.

use std::collections::HashMap;

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Word,
    Text,
    Mark,
}

/// A piece of code: a word, the content of a string literal, or a mark. `::` and `=>` are one mark each.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// A file under the repository's root.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    /// The folder of its crate.
    pub(crate) house: String,
    pub(crate) lines: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    /// Comments by line, without their slashes; a block comment has one for each of its lines.
    pub(crate) comments: Vec<(usize, String)>,
    test_lines: Vec<(usize, usize)>,
    /// Where each word stands among the tokens: hundreds of patterns are looked for.
    places: HashMap<String, Vec<usize>>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut lexer = Lexer {
            rest: text.chars().collect(),
            at: 0,
            line: 1,
            tokens: vec![],
            comments: vec![],
        };
        lexer.run();
        let test_lines = test_lines(path, &lexer.tokens);
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, token) in lexer.tokens.iter().enumerate() {
            if token.kind != Kind::Text {
                places.entry(token.text.clone()).or_default().push(at);
            }
        }
        Self {
            path: path.into(),
            house: String::new(),
            lines: text.lines().map(Into::into).collect(),
            tokens: lexer.tokens,
            comments: lexer.comments,
            test_lines,
            places,
        }
    }

    /// The room a file of `src/` stands in: the first word of its path there. A build script stands in none.
    pub(crate) fn room(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        if inside.ends_with("/build.rs") {
            return None;
        }
        let first = inside.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first))
    }

    /// True if what is defined on `line` is for more than its own file.
    pub(crate) fn is_visible(&self, line: usize) -> bool {
        let text = self.lines.get(line - 1).map(|line| line.trim_start());
        text.is_some_and(|text| text.starts_with("pub ") || text.starts_with("pub("))
    }

    /// True for lines that are only compiled for tests.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.test_lines
            .iter()
            .any(|&(first, last)| (first..=last).contains(&line))
    }

    /// Lines where the tokens of `pattern`, which are separated by blanks, follow each other.
    pub(crate) fn find(&self, pattern: &str) -> Vec<usize> {
        let wanted: Vec<&str> = pattern.split(' ').collect();
        let hit = |window: &[Token]| {
            window.len() == wanted.len()
                && window
                    .iter()
                    .zip(&wanted)
                    .all(|(token, wanted)| token.kind != Kind::Text && token.text == *wanted)
        };
        let firsts = self.places.get(wanted[0]).into_iter().flatten();
        firsts
            .filter_map(|&at| self.tokens.get(at..at + wanted.len()))
            .filter(|window| hit(window))
            .map(|window| window[0].line)
            .collect()
    }

    /// The text of the comment on `line`, if that is all there is.
    pub(crate) fn comment_only(&self, line: usize) -> Option<&str> {
        // Both lie in the order of their lines.
        let after = self.tokens.partition_point(|token| token.line < line);
        if self
            .tokens
            .get(after)
            .is_some_and(|token| token.line == line)
        {
            return None;
        }
        let after = self.comments.partition_point(|comment| comment.0 < line);
        let comment = self.comments.get(after).filter(|comment| comment.0 == line);
        comment.map(|comment| comment.1.as_str())
    }
}

struct Lexer {
    rest: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    comments: Vec<(usize, String)>,
}

impl Lexer {
    fn run(&mut self) {
        while let Some(next) = self.peek(0) {
            match (next, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(0, true),
                ('\'', _) => self.quote(),
                (c, _) if c.is_alphanumeric() || c == '_' => self.word(),
                (c, _) if c.is_whitespace() => self.skip(1),
                (':', Some(':')) => self.mark("::"),
                ('=', Some('>')) => self.mark("=>"),
                (c, _) => self.mark(&c.to_string()),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            if self.peek(0) == Some('\n') {
                self.line += 1;
            }
            self.at += 1;
        }
    }

    fn push(&mut self, kind: Kind, text: String, line: usize) {
        self.tokens.push(Token { kind, text, line });
    }

    fn mark(&mut self, mark: &str) {
        self.push(Kind::Mark, mark.into(), self.line);
        self.skip(mark.chars().count());
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek(0).is_some_and(&keep) {
            self.skip(1);
        }
        self.rest[start..self.at].iter().collect()
    }

    fn line_comment(&mut self) {
        let (line, text) = (self.line, self.take_while(|c| c != '\n'));
        self.comments
            .push((line, text.trim_start_matches(['/', '!']).into()));
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut text = String::new();
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.skip(2);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.skip(2);
                    if depth == 0 {
                        break;
                    }
                }
                (Some('\n'), _) => {
                    self.comments.push((self.line, std::mem::take(&mut text)));
                    self.skip(1);
                }
                (Some(c), _) => {
                    text.push(c);
                    self.skip(1);
                }
                (None, _) => break,
            }
        }
        self.comments.push((self.line, text));
    }

    /// A string with `hashes` marks around it; escapes count unless it is raw.
    fn string(&mut self, hashes: usize, escapes: bool) {
        let line = self.line;
        let mut text = String::new();
        self.skip(1 + hashes);
        while let Some(c) = self.peek(0) {
            if c == '\\' && escapes {
                self.skip(2);
                continue;
            }
            if c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.skip(1 + hashes);
                break;
            }
            text.push(c);
            self.skip(1);
        }
        self.push(Kind::Text, text, line);
    }

    /// A character literal, or the mark of a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == Some('\\') {
            self.skip(3);
            self.take_while(|c| c != '\'' && c != '\n');
            self.skip(1);
        } else if self.peek(2) == Some('\'') {
            self.skip(3);
        } else {
            self.mark("'");
        }
    }

    fn word(&mut self) {
        let line = self.line;
        let word = self.take_while(|c| c.is_alphanumeric() || c == '_');
        let hashes = (0..)
            .take_while(|&ahead| self.peek(ahead) == Some('#'))
            .count();
        let quoted = self.peek(hashes) == Some('"');
        match word.as_str() {
            "r" | "br" | "cr" if quoted => self.string(hashes, false),
            "b" | "c" if quoted && hashes == 0 => self.string(0, true),
            "b" if self.peek(0) == Some('\'') => self.quote(),
            _ => self.push(Kind::Word, word, line),
        }
    }
}

/// Whole files of tests, and what stands behind `#[cfg(test)]`, to its semicolon or closing brace.
fn test_lines(path: &str, tokens: &[Token]) -> Vec<(usize, usize)> {
    let in_tests =
        path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/");
    if in_tests {
        return vec![(0, usize::MAX)];
    }
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.text == text);
    let mut found = vec![];
    for at in 0..tokens.len() {
        if !(is(at, "#") && is(at + 1, "[") && is(at + 2, "cfg") && is(at + 3, "(")) {
            continue;
        }
        let plain = is(at + 4, "test") && is(at + 5, ")");
        let all = is(at + 4, "all") && is(at + 5, "(") && is(at + 6, "test");
        if !plain && !all {
            continue;
        }
        let mut depth = 0usize;
        let mut end = at + 1;
        // Attributes hold no braces or semicolons, so the first of either that closes is the item's end.
        while end < tokens.len() {
            match tokens[end].text.as_str() {
                "{" if tokens[end].kind == Kind::Mark => depth += 1,
                "}" if tokens[end].kind == Kind::Mark => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                ";" if depth == 0 => break,
                _ => {}
            }
            end += 1;
        }
        let last = tokens
            .get(end)
            .or_else(|| tokens.last())
            .map_or(0, |token| token.line);
        found.push((tokens[at].line, last));
    }
    found
}
