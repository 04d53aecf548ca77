//! Splits a Rust source into comments, strings, names of functions and code.

use crate::text::Text;

#[derive(Debug, Default)]
pub(crate) struct RustSource {
    /// Runs of comment lines, without their slashes.
    pub(crate) comments: Vec<Text>,
    /// Strings with white space; others are names and values.
    pub(crate) strings: Vec<Text>,
    /// Names of functions, with spaces for underscores.
    pub(crate) functions: Vec<Text>,
    /// The code without comments and with empty strings.
    pub(crate) code: String,
    /// Doc comments, strings, and the words and signs of the code.
    pub(crate) tokens: Vec<Token>,
}

#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) line: usize,
    pub(crate) kind: TokenKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A line of a doc comment.
    Doc(String),
    /// A string as it is written, without its quotes.
    Str(String),
    /// A word or a sign.
    Code(String),
}

impl RustSource {
    pub(crate) fn parse(source: &str) -> Self {
        let mut lexer = Lexer { rest: source, line: 1, comment: None, out: Self::default() };
        while !lexer.rest.is_empty() {
            lexer.step();
        }
        lexer.out
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    /// The line of the last comment while no code follows it.
    comment: Option<usize>,
    out: RustSource,
}

impl<'a> Lexer<'a> {
    fn step(&mut self) {
        let rest = self.rest;
        if rest.starts_with("//") {
            self.comment(rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.take(rest.find("*/").map_or(rest.len(), |end| end + 2));
        } else if let Some(hashes) = raw_string(rest) {
            let start = hashes + 2;
            let closing = format!("\"{}", "#".repeat(hashes));
            let end = rest[start..].find(&closing).map_or(rest.len(), |end| start + end);
            self.string(start, end, end + closing.len());
        } else if rest.starts_with('"') {
            let end = closing_quote(rest, b'"');
            self.string(1, end, end + 1);
        } else if let Some(quoted) = rest.strip_prefix('\'') {
            // Otherwise it is a lifetime.
            let is_char = quoted.starts_with('\\') || quoted.chars().nth(1) == Some('\'');
            self.take(if is_char { closing_quote(rest, b'\'') + 1 } else { 1 });
        } else {
            self.code();
        }
    }

    fn token(&mut self, line: usize, kind: TokenKind) {
        self.out.tokens.push(Token { line, kind });
    }

    /// Takes `length` bytes, or all that are left.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn comment(&mut self, length: usize) {
        let line = self.line;
        let comment = self.take(length);
        let words = comment.trim_start_matches(['/', '!']);
        if comment.starts_with("///") {
            self.token(line, TokenKind::Doc(words.strip_prefix(' ').unwrap_or(words).to_owned()));
        }
        match self.out.comments.last_mut() {
            Some(last) if self.comment.is_some_and(|above| above + 1 == line) => last.push_line(words),
            _ => self.out.comments.push(Text::new(line, words)),
        }
        self.comment = Some(line);
    }

    fn string(&mut self, start: usize, end: usize, length: usize) {
        let line = self.line;
        let string = self.take(length).get(start..end).unwrap_or_default();
        self.token(line, TokenKind::Str(string.to_owned()));
        if string.trim().contains(char::is_whitespace) {
            self.out.strings.push(Text::new(line, &string.replace("\\n", " \n")));
        }
        self.out.code.push_str("\"\"");
        self.comment = None;
    }

    fn code(&mut self) {
        let word = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let code = self.take(word.max(self.rest.chars().next().map_or(1, char::len_utf8)));
        self.out.code.push_str(code);
        if !code.trim().is_empty() {
            self.token(self.line, TokenKind::Code(code.to_owned()));
            self.comment = None;
        }
        if code == "fn" {
            let name = self.rest.trim_start();
            let name = &name[..name.find(|c| !is_word(c)).unwrap_or(name.len())];
            self.out.functions.push(Text::new(self.line, &name.replace('_', " ")));
        }
    }
}

/// Returns the number of hashes if a raw string begins here, such as 1 for `r#"`.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.strip_prefix('r')?;
    let quote = hashes.trim_start_matches('#');
    quote.starts_with('"').then(|| hashes.len() - quote.len())
}

/// Returns the position of the quote that closes the one at the start.
fn closing_quote(rest: &str, quote: u8) -> usize {
    let mut bytes = rest.bytes().enumerate().skip(1);
    while let Some((position, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            _ if byte == quote => return position,
            _ => {}
        }
    }
    rest.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
