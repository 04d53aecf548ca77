//! Checks `log.level`: a level, or a list of levels and `TARGET=LEVEL`.
//!
//! The filter of `tracing-subscriber` takes any other word for the name of a target, and then logs
//! nothing else, not even errors.

use tracing_subscriber::EnvFilter;

/// The levels, most severe first.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The level of everything that the list does not name.
const DEFAULT: &str = "info";

/// Why a value is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidLevel {
    #[error("a log level must be {}, or a list such as \"info,h2=debug\"; got an empty text", levels())]
    Empty,
    #[error("{word:?} is not a log level: must be {}, or a list such as \"info,h2=debug\"{}", levels(), hint(.word))]
    Word { word: String },
    #[error("invalid part {directive:?} of the log levels: expected TARGET=LEVEL, with {} as the level{}", levels(), hint(.word))]
    Target { directive: String, word: String },
    #[error("{text:?}: {problem}")]
    Filter { text: String, problem: String },
}

/// Returns the filter of the log: levels in lower case, `warn` for `warning`, and always a level
/// for the targets that the list does not name.
pub(super) fn parse(text: &str) -> Result<String, InvalidLevel> {
    let directives = split(text).into_iter().map(str::trim).filter(|directive| !directive.is_empty());
    let mut filter = directives.map(directive).collect::<Result<Vec<_>, _>>()?;
    if filter.is_empty() {
        return Err(InvalidLevel::Empty);
    }
    if !filter.iter().any(|directive| LEVELS.contains(&directive.as_str())) {
        filter.insert(0, DEFAULT.to_owned());
    }
    let filter = filter.join(",");
    match EnvFilter::try_new(&filter) {
        Ok(_) => Ok(filter),
        Err(error) => Err(InvalidLevel::Filter { text: text.to_owned(), problem: error.to_string() }),
    }
}

/// Checks one entry of the list.
fn directive(text: &str) -> Result<String, InvalidLevel> {
    // The field filter of a span may contain `=` too.
    let end_of_span = text.rfind(']').map_or(0, |end| end + 1);
    match text[end_of_span..].find('=').map(|at| text.split_at(end_of_span + at)) {
        Some((target, level)) => {
            let word = level[1..].trim();
            let level = level_of(word).filter(|_| !target.trim().is_empty());
            let level =
                level.ok_or_else(|| InvalidLevel::Target { directive: text.to_owned(), word: word.to_owned() })?;
            Ok(format!("{}={level}", target.trim()))
        }
        // All levels of a span.
        None if end_of_span > 0 => Ok(text.to_owned()),
        None => match level_of(text) {
            Some(level) => Ok(level.to_owned()),
            None => Err(InvalidLevel::Word { word: text.to_owned() }),
        },
    }
}

fn level_of(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "warning" => Some("warn"),
        word => LEVELS.into_iter().find(|level| *level == word),
    }
}

/// Splits a list at the commas outside of brackets and braces.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let at_comma = |c: char| {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(at_comma).collect()
}

fn levels() -> String {
    LEVELS.join(", ")
}

/// Returns the level that a word was probably meant to be.
fn hint(word: &str) -> String {
    let word = word.to_ascii_lowercase();
    let meant = match word.as_str() {
        "err" | "fatal" | "critical" | "crit" | "alert" | "emerg" | "panic" => Some("error"),
        "notice" | "information" | "informational" | "default" | "normal" => Some("info"),
        "verbose" | "all" => Some("debug"),
        "none" | "quiet" | "silent" => Some("off"),
        _ => LEVELS.into_iter().chain(["warning"]).find(|level| distance(&word, level) <= 1).and_then(level_of),
    };
    meant.map(|level| format!("; did you mean {level:?}?")).unwrap_or_default()
}

/// Returns the number of letters to insert, remove, replace or swap with the next; 2 stands for more than 1.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let rest = |list: &[u8], from: usize| list.get(from..).map(<[u8]>::to_vec);
    let one = rest(a, 1).is_some_and(|a| a == b)
        || rest(b, 1).is_some_and(|b| b == a)
        || rest(a, 1).zip(rest(b, 1)).is_some_and(|(a, b)| a == b)
        || (rest(a, 2).zip(rest(b, 2)).is_some_and(|(a, b)| a == b) && a[0] == b[1] && a[1] == b[0]);
    match (a.is_empty() && b.is_empty(), one) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_lists_are_accepted() {
        for (text, filter) in [
            ("info", "info"),
            ("WARNING", "warn"),
            ("Debug", "debug"),
            ("off", "off"),
            ("info,h2=debug", "info,h2=debug"),
            ("daemon::grpc=Warning , error", "daemon::grpc=warn,error"),
            ("h2=debug", "info,h2=debug"),
            ("info,[rpc{pod=abc}]=debug", "info,[rpc{pod=abc}]=debug"),
        ] {
            assert_eq!(parse(text).unwrap(), filter, "{text}");
        }
    }

    #[test]
    fn a_word_that_is_not_a_level_is_refused_with_the_levels_and_a_hint() {
        let refused = |text: &str| parse(text).unwrap_err().to_string();
        let expected = "must be off, error, warn, info, debug, trace";
        for (text, hint) in [
            ("verbose", "; did you mean \"debug\"?"),
            ("wran", "; did you mean \"warn\"?"),
            ("inf", "; did you mean \"info\"?"),
            ("errror", "; did you mean \"error\"?"),
            ("information", "; did you mean \"info\"?"),
            ("h2", "info,h2=debug\""),
            ("3", "info,h2=debug\""),
            ("info,loud", "info,h2=debug\""),
        ] {
            let words = refused(text);
            assert!(words.contains(expected) && words.ends_with(hint), "{text}: {words}");
        }
        assert!(refused("h2=warm").ends_with("did you mean \"warn\"?"), "{}", refused("h2=warm"));
        for bad in ["", " , ", "=info", "a=b=c", "h2=", "info,h2=loud", "[rpc"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
