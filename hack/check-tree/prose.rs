//! The rules of prose in CONTRIBUTING.md that a program can check.

use crate::Finding;
use crate::rust_source::RustSource;
use crate::text::{Text, Word};

const MARKDOWN_WIDTH: usize = 120;
const COMMENT_WIDTH: usize = 120;
const ARCHITECTURE_LINES: usize = 150;

const PEOPLE: &str = "for people only; name the process, client or file";
const SPEECH: &str = "for people only; use send, report, log, publish, read, query or return";

/// Words and phrases, and the rule each of them breaks.
const PHRASES: [(&str, &str); 46] = [
    ("who", PEOPLE),
    ("whom", PEOPLE),
    ("whoever", PEOPLE),
    ("nobody", PEOPLE),
    ("somebody", PEOPLE),
    ("anybody", PEOPLE),
    ("everybody", PEOPLE),
    ("himself", PEOPLE),
    ("the peers", "write containerd and CRI-O"),
    ("tell", SPEECH),
    ("tells", SPEECH),
    ("telling", SPEECH),
    ("told", SPEECH),
    ("say", SPEECH),
    ("says", SPEECH),
    ("saying", SPEECH),
    ("said", SPEECH),
    ("hear", SPEECH),
    ("hears", SPEECH),
    ("heard", SPEECH),
    ("ask", SPEECH),
    ("asks", SPEECH),
    ("asking", SPEECH),
    ("asked", SPEECH),
    ("look at", SPEECH),
    ("looks at", SPEECH),
    ("looked at", SPEECH),
    ("looking at", SPEECH),
    ("look after", SPEECH),
    ("looks after", SPEECH),
    ("look into", SPEECH),
    ("looks into", SPEECH),
    ("look on", SPEECH),
    ("looks on", SPEECH),
    ("let go", "write disconnected, closed or released"),
    ("lets go", "write disconnects, closes or releases"),
    ("of its own accord", "write without a request, or name the cause"),
    ("of crisp's own", "name the thing"),
    ("of our own", "name the thing"),
    ("of ours", "name the thing"),
    ("is none of", "write must be one of"),
    ("is no", "write is not a, or expected"),
    ("are no", "write are not, or expected"),
    ("was no", "write was not a, or expected"),
    ("gets to", "write can, may or reaches"),
    ("what is asked", SPEECH),
];

/// Sentences of crisp have a subject: they do not begin with a relative clause.
const NO_SUBJECT: [&str; 5] = ["what", "who", "whoever", "whose", "whatever"];

pub(crate) fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts(path, content) {
        check_words(path, &text.words(), &mut findings);
    }
    check_width(path, content, &mut findings);
    if path == "ARCHITECTURE.md" && content.lines().count() > ARCHITECTURE_LINES {
        let lines = content.lines().count();
        findings.push(Finding::new(
            path,
            0,
            format!("{lines} lines, at most {ARCHITECTURE_LINES}; move details to docs/"),
        ));
    }
    findings
}

/// Returns the prose of a file; empty for files of other kinds.
fn texts(path: &str, content: &str) -> Vec<Text> {
    if path.ends_with(".rs") {
        let source = RustSource::parse(content);
        return [source.comments, source.strings, source.functions].concat();
    }
    if path.ends_with(".md") {
        return vec![Text::new(1, content)];
    }
    if is_script(path) { script_comments(content) } else { Vec::new() }
}

fn is_script(path: &str) -> bool {
    path.ends_with(".toml") || path.starts_with("hack/") || path.starts_with(".ci/")
}

/// Returns the comments and quoted strings of a shell script or TOML file.
fn script_comments(content: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let mut is_comment = false;
    for (number, line) in content.lines().enumerate() {
        let comment = line.trim_start().strip_prefix('#').or_else(|| Some(line.split_once(" # ")?.1));
        match (comment, texts.last_mut()) {
            (Some(comment), Some(last)) if is_comment => last.push_line(comment),
            (Some(comment), _) => texts.push(Text::new(number + 1, comment)),
            (None, _) => {}
        }
        is_comment = line.trim_start().starts_with('#');
        if !is_comment {
            let strings = line.split('"').skip(1).step_by(2).filter(|string| string.contains(' '));
            texts.extend(strings.map(|string| Text::new(number + 1, string)));
        }
    }
    texts
}

fn check_words(path: &str, words: &[Word], findings: &mut Vec<Finding>) {
    for (position, word) in words.iter().enumerate() {
        if word.begins_sentence && NO_SUBJECT.contains(&word.word.as_str()) {
            findings.push(Finding::new(
                path,
                word.line,
                format!("sentence begins with {:?}; name the subject", word.word),
            ));
        }
        for (phrase, rule) in PHRASES {
            let is_here =
                phrase.split(' ').enumerate().all(|(n, part)| words.get(position + n).is_some_and(|w| w.word == part));
            if is_here && !is_plain(phrase, words, position) {
                findings.push(Finding::new(path, word.line, format!("{phrase:?}: {rule}")));
            }
        }
    }
}

/// Returns whether the use is allowed, as in "there is no" and "is no longer".
fn is_plain(phrase: &str, words: &[Word], position: usize) -> bool {
    let before = position.checked_sub(1).map(|before| words[before].word.as_str());
    let after = words.get(position + 2).map(|after| after.word.as_str());
    phrase.ends_with(" no") && (before == Some("there") || matches!(after, Some("longer" | "more" | "other" | "such")))
}

fn check_width(path: &str, content: &str, findings: &mut Vec<Finding>) {
    let is_markdown = path.ends_with(".md");
    let mut is_fenced = false;
    for (number, line) in content.lines().enumerate() {
        let trimmed = line.trim_start();
        is_fenced ^= is_markdown && trimmed.starts_with("```");
        let (limit, is_free) = if is_markdown {
            // Tables and links cannot be wrapped, and code is not.
            (MARKDOWN_WIDTH, is_fenced || line.starts_with("    ") || trimmed.starts_with('|') || line.contains("]("))
        } else {
            let is_comment = if path.ends_with(".rs") { trimmed.starts_with("//") } else { trimmed.starts_with('#') };
            (COMMENT_WIDTH, !is_comment || line.contains("://"))
        };
        let width = line.chars().count();
        if width > limit && !is_free {
            findings.push(Finding::new(path, number + 1, format!("{width} columns, at most {limit}")));
        }
    }
}
