//! Words: the text format's tokens, with where each stands.
//!
//! Knows no messages: names, numbers, quoted bytes and marks.

/// A token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Word<'a> {
    /// A name, also `true`, `inf` and the like.
    Name(&'a str),
    /// A number without its sign.
    Number(&'a str),
    /// What stood in quotes.
    Quoted(Vec<u8>),
    /// One of `{ } < > [ ] : , ; - / .`.
    Mark(char),
    /// Nothing is left.
    End,
}

/// What is wrong, and at which byte.
#[derive(Debug)]
pub(super) struct TextFault {
    pub(super) at: usize,
    pub(super) what: String,
}

/// Reads tokens.
#[derive(Debug)]
pub(super) struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) const fn of(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Word<'a>), TextFault> {
        self.skip();
        let start = self.at;
        let Some(first) = self.rest().chars().next() else {
            return Ok((start, Word::End));
        };
        let word = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                Word::Name(self.take(|c| c.is_ascii_alphanumeric() || c == '_'))
            }
            '0'..='9' => Word::Number(self.number()),
            '.' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                Word::Number(self.number())
            }
            '"' | '\'' => Word::Quoted(self.quoted(first)?),
            '{' | '}' | '<' | '>' | '[' | ']' | ':' | ',' | ';' | '-' | '/' | '.' => {
                self.at += 1;
                Word::Mark(first)
            }
            other => {
                let what = format!("{other:?} has no meaning here");
                return Err(TextFault { at: start, what });
            }
        };
        Ok((start, word))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn take(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Blanks and comments.
    fn skip(&mut self) {
        loop {
            self.take(|c| c.is_ascii_whitespace());
            if !self.rest().starts_with('#') {
                return;
            }
            self.take(|c| c != '\n');
        }
    }

    /// Digits with what may stand in a number; its reader says if it is no number.
    fn number(&mut self) -> &'a str {
        let rest = self.rest();
        let mut before = '0';
        let is_hex = rest.starts_with("0x") || rest.starts_with("0X");
        let len = rest.find(|c: char| {
            let is_sign = (c == '-' || c == '+') && matches!(before, 'e' | 'E') && !is_hex;
            before = c;
            !(c.is_ascii_alphanumeric() || c == '.' || is_sign)
        });
        let len = len.unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn quoted(&mut self, quote: char) -> Result<Vec<u8>, TextFault> {
        let start = self.at;
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let plain = self.take(|c| c != quote && c != '\\' && c != '\n');
            bytes.extend_from_slice(plain.as_bytes());
            match self.rest().chars().next() {
                Some('\\') => self.escaped(&mut bytes)?,
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(bytes);
                }
                _ => {
                    let what = "a quoted text does not end on its line".to_owned();
                    return Err(TextFault { at: start, what });
                }
            }
        }
    }

    fn escaped(&mut self, bytes: &mut Vec<u8>) -> Result<(), TextFault> {
        let start = self.at;
        let bad = |what: &str| TextFault {
            at: start,
            what: what.to_owned(),
        };
        self.at += 1;
        let c = self.rest().chars().next();
        let c = c.ok_or_else(|| bad("a quoted text does not end"))?;
        if c.is_digit(8) {
            let number = self.digits(8, 3);
            let byte = u8::try_from(number).map_err(|_| bad("'\\' and digits are over \\377"))?;
            bytes.push(byte);
            return Ok(());
        }
        self.at += c.len_utf8();
        let byte = match c {
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            '\\' | '\'' | '"' | '?' => c as u8,
            'x' | 'X' if self.rest().starts_with(|c: char| c.is_ascii_hexdigit()) => {
                self.digits(16, 2) as u8
            }
            'u' | 'U' => {
                let wanted = if c == 'u' { 4 } else { 8 };
                let before = self.at;
                let number = self.digits(16, wanted);
                let c = char::from_u32(number).filter(|_| self.at - before == wanted);
                let c =
                    c.ok_or_else(|| bad("'\\u' wants four and '\\U' eight digits of a character"))?;
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => {
                return Err(bad(
                    "'\\' is followed by nothing that it has a meaning with",
                ));
            }
        };
        bytes.push(byte);
        Ok(())
    }

    /// At most so many digits; no more than eight of sixteen kinds, so that they fit.
    fn digits(&mut self, radix: u32, most: usize) -> u32 {
        let digits = self.rest().chars().map_while(|c| c.to_digit(radix));
        let mut value = 0u32;
        let mut count = 0;
        for digit in digits.take(most) {
            value = value.wrapping_mul(radix).wrapping_add(digit);
            count += 1;
        }
        self.at += count;
        value
    }
}
