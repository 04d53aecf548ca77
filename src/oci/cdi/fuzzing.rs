//! Gives the fuzzer in `tests/fuzz` access to the parser of specs. Not in release builds.

use super::file::{BYTES_MAX, parse};

/// Parses `data` as JSON and as YAML. JSON is also valid YAML.
pub fn spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if u64::try_from(text.len()).is_ok_and(|length| length > BYTES_MAX) {
        return;
    }
    for is_json in [true, false] {
        match parse(text, is_json) {
            Ok(spec) => drop(format!("{spec:?}")),
            Err(error) => assert!(error.to_string().len() < 2 * text.len() + 500, "the error is longer than the file"),
        }
    }
}
