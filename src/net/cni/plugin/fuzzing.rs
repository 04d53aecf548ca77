//! Entry point for fuzzing all parsers of plugin output.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use super::error::Verb;
use super::exec::PluginOutput;
use super::result;
use super::version::Version;

/// Reads `data` as a result, as an error and as a list of versions.
pub(crate) fn result(data: &[u8]) {
    let output =
        || PluginOutput { plugin: "x".to_owned(), verb: Verb::Add, stdout: data.to_vec(), stderr: String::new() };
    for version in Version::ALL {
        let Ok(value) = result::result(output(), version) else { continue };
        let Ok(attached) = result::attached(&value, version) else { continue };
        assert!(!attached.ips.is_empty(), "a result has an address");
        // The next plugin gets it, and it is read again after a restart.
        let again = PluginOutput { stdout: value.to_string().into_bytes(), ..output() };
        let again = result::result(again, version)
            .and_then(|value| result::attached(&value, version).map_err(|why| output().invalid_output(why)));
        assert_eq!(again.ok(), Some(attached), "a result that is read again is another");
    }
    if let Err(error) = result::check_exit(output(), ExitStatus::from_raw(256)) {
        let text = error.to_string();
        assert!(text.len() < 16 << 10 && !text.contains(|c: char| c.is_control()), "{text:?}");
    }
    result::versions(output()).ok();
}
