//! A piece of prose and the lines it is on.

/// Stands for code in a sentence.
const CODE: char = '\u{fffc}';

#[derive(Clone, Debug)]
pub(crate) struct Text {
    first_line: usize,
    text: String,
}

/// A word in lower case.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) line: usize,
    pub(crate) word: String,
    pub(crate) begins_sentence: bool,
}

impl Text {
    pub(crate) fn new(first_line: usize, text: &str) -> Self {
        Self { first_line, text: text.to_owned() }
    }

    pub(crate) fn push_line(&mut self, line: &str) {
        self.text.push('\n');
        self.text.push_str(line);
    }

    /// Returns the words of the text without its code.
    pub(crate) fn words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        let mut word = String::new();
        let mut begins_sentence = true;
        for (number, line) in without_code(&self.text).lines().enumerate() {
            // Headings, list items and table rows are sentences of their own.
            begins_sentence |= line.trim().is_empty() || line.trim_start().starts_with(['#', '-', '*', '|']);
            let mut before = '\n';
            for c in line.chars().chain(['\n']) {
                if c.is_alphanumeric() || matches!(c, '_' | '\'' | CODE) {
                    word.extend(c.to_lowercase());
                } else {
                    let plain = word.trim_matches('\'');
                    let plain = plain.strip_suffix("'s").unwrap_or(plain);
                    if !plain.is_empty() {
                        words.push(Word { line: self.first_line + number, word: plain.to_owned(), begins_sentence });
                        begins_sentence = false;
                    }
                    word.clear();
                    begins_sentence |= c == '|' || (c.is_whitespace() && matches!(before, '.' | '!' | '?'));
                }
                before = c;
            }
        }
        words
    }
}

/// Replaces code by [`CODE`] and keeps the lines.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let (mut is_fenced, mut is_indented, mut after_empty) = (false, false, true);
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        is_indented = line.starts_with("    ") && (is_indented || after_empty);
        after_empty = line.trim().is_empty();
        if !(is_fence || is_fenced || is_indented) {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    let mut closing = None;
    let mut before = '\n';
    let mut out = String::new();
    for c in prose.chars() {
        match closing {
            // Code does not go past a paragraph.
            Some(end) if c == end || (c == '\n' && before == '\n') => closing = None,
            Some(_) => {}
            None => {
                closing = match (before, c) {
                    (_, '`') => Some('`'),
                    (_, '{') => Some('}'),
                    (']', '(') => Some(')'),
                    _ => None,
                };
                if closing.is_some() {
                    out.push(CODE);
                }
            }
        }
        if c == '\n' || (closing.is_none() && !matches!(c, '`' | '}')) {
            out.push(c);
        }
        before = c;
    }
    out
}
