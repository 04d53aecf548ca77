//! An error with all its causes, in one line.

use std::error::Error;

/// Joins an error and its sources by colons. A source whose words its parent repeats already is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] Middle);
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        struct Middle(#[from] std::io::Error);
        let error = Outer(Middle(std::io::Error::other("inner")));
        assert_eq!(chain(&error), "outer: inner");
    }
}
