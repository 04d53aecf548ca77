//! Reads and parses one spec file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use safe_fs::FileStamp;

use super::file_format::{Header, RawSpec};
use super::spec::Spec;
use super::validate::SpecError;
use super::{validate, version};

/// Larger than any known spec of a host with many devices.
pub(super) const BYTES_MAX: u64 = 2 << 20;
/// A file changed within this time before it is read may change again with an equal timestamp.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The reason why a spec file is ignored.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("the CDI spec (cdi.spec_dirs) is not a regular file")]
    NotAFile,
    #[error("the CDI spec (cdi.spec_dirs) has more than {BYTES_MAX} bytes")]
    TooLong,
    #[error("the CDI spec (cdi.spec_dirs) belongs to user {0}: must belong to root")]
    Owner(u32),
    #[error("the CDI spec (cdi.spec_dirs) must not be world-writable")]
    Writable,
    #[error("unknown cdiVersion {0:?} of the CDI spec (cdi.spec_dirs)")]
    Version(String),
    #[error("{0}")]
    Syntax(String),
    #[error(transparent)]
    Flaw(#[from] SpecError),
}

/// Returns whether a later write will change the stamp; timestamps have a limited granularity.
pub(super) fn is_settled(stamp: &FileStamp) -> bool {
    let changed = u64::try_from(stamp.changed().0).map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s));
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|ago| ago > SETTLED_AFTER))
}

/// Reads and checks a spec. Follows symbolic links, since the directories belong to root.
pub(super) fn read(path: &Path) -> Result<Spec, FileError> {
    // NONBLOCK: open(2) of a FIFO must not wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(FileError::NotAFile);
    }
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(FileError::Owner(meta.uid()));
    }
    if meta.mode() & 0o002 != 0 {
        return Err(FileError::Writable);
    }
    let mut text = String::new();
    // The size in the metadata may be wrong, so the limit applies to the bytes read.
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > BYTES_MAX) {
        return Err(FileError::TooLong);
    }
    parse(&text, path.extension().is_some_and(|ext| ext == "json"))
}

/// Parses and checks a spec in JSON or YAML.
pub(super) fn parse(text: &str, is_json: bool) -> Result<Spec, FileError> {
    let raw = if is_json { json(text) } else { yaml(text) };
    Ok(validate::check(raw?)?)
}

fn json(text: &str) -> Result<RawSpec, FileError> {
    serde_json::from_str(text).map_err(|error| {
        let head = serde_json::from_str::<Header>(text).ok();
        unreadable(head, error.to_string())
    })
}

fn yaml(text: &str) -> Result<RawSpec, FileError> {
    // containerd and CRI-O read a mode such as 0660 as octal. The budget bounds the expansion of
    // aliases.
    let options = || {
        serde_saphyr::options! {
            legacy_octal_numbers: true,
            with_snippet: false,
            budget: serde_saphyr::budget! { max_documents: 1, max_depth: 16, max_aliases: 256, max_nodes: 200_000, },
        }
    };
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let head = serde_saphyr::from_str_with_options::<Header>(text, options()).ok();
        unreadable(head, error.to_string())
    })
}

/// Returns the error of a file that cannot be parsed: its version if that is unknown, since a later
/// version may have new keys.
fn unreadable(head: Option<Header>, problem: String) -> FileError {
    match head {
        Some(Header { cdi_version }) if !version::is_known(&cdi_version) => FileError::Version(cdi_version),
        _ => FileError::Syntax(problem.lines().next().unwrap_or_default().to_owned()),
    }
}
