//! Formats an error with all its sources in one line.

use std::error::Error;

/// Joins an error and its sources with ": ". A source that the text already ends with is left out.
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
    fn every_source_appears_once() {
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
