//! A door to what reads specs, for the fuzzer in `tests/fuzz`. Not part of what ships.

use super::file::{BYTES_MAX, parse};

/// Reads `data` as a spec in either form. A spec in JSON is one in YAML as well.
pub fn spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if u64::try_from(text.len()).is_ok_and(|length| length > BYTES_MAX) {
        return;
    }
    for is_json in [true, false] {
        match parse(text, is_json) {
            Ok(spec) => drop(format!("{spec:?}")),
            Err(error) => assert!(error.to_string().len() < 2 * text.len() + 500, "the reason is longer than the file"),
        }
    }
}
