//! One entry of a tar stream: its header and extensions.

use std::ops::Range;

use crate::tar::header;
use crate::tar::header::{Block, checked_id, number, signed, until_nul};
use crate::tar::pax::PaxOverrides;
use crate::tar::reader::TarError;
use crate::tar::sparse::Segment;

/// The metadata of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    /// Target of a symbolic or hard link.
    pub(crate) link: Vec<u8>,
    pub(crate) what: EntryKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Mtime,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Length of the written file; a sparse file has fewer data bytes in the stream.
    pub(crate) size: u64,
    /// The offsets of the data of a sparse file.
    pub(crate) segments: Option<Vec<Segment>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    Symlink,
    HardLink,
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Fifo,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mtime {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

impl Entry {
    /// Combines a header and the extensions before it to an entry, without its data.
    pub(crate) fn new(block: &Block, extras: PaxOverrides) -> Result<Self, TarError> {
        let path = extras.path.unwrap_or_else(|| header::path(block));
        let what = EntryKind::new(block, &path)?;
        let id = |given: Option<u32>, range: Range<usize>, name| match given {
            Some(id) => Ok(id),
            None => number(&block[range]).and_then(checked_id).ok_or(TarError::Number(name)),
        };
        let mode = number(&block[100..108]).ok_or(TarError::Number("mode"))? & 0o7777;
        Ok(Self {
            path,
            link: extras.link.unwrap_or_else(|| until_nul(block[157..257].to_vec())),
            what,
            mode: u32::try_from(mode).map_err(|_| TarError::Number("mode"))?,
            uid: id(extras.uid, 108..116, "uid")?,
            gid: id(extras.gid, 116..124, "gid")?,
            mtime: match extras.mtime {
                Some(mtime) => mtime,
                None => Mtime { seconds: signed(&block[136..148]).ok_or(TarError::Number("mtime"))?, nanos: 0 },
            },
            xattrs: extras.xattrs.into_iter().collect(),
            size: 0,
            segments: None,
        })
    }
}

impl EntryKind {
    fn new(block: &Block, path: &[u8]) -> Result<Self, TarError> {
        let part = |range: Range<usize>, name| {
            number(&block[range]).and_then(|n| u32::try_from(n).ok()).ok_or(TarError::Number(name))
        };
        let device = || Ok::<_, TarError>((part(329..337, "devmajor")?, part(337..345, "devminor")?));
        Ok(match block[156] {
            // In the oldest format only a trailing slash marks a directory.
            0 if path.ends_with(b"/") => Self::Directory,
            0 | b'0' | b'7' | b'S' => Self::File,
            b'1' => Self::HardLink,
            b'2' => Self::Symlink,
            b'3' => device().map(|(major, minor)| Self::CharDevice { major, minor })?,
            b'4' => device().map(|(major, minor)| Self::BlockDevice { major, minor })?,
            b'5' => Self::Directory,
            b'6' => Self::Fifo,
            other => return Err(TarError::Type(other)),
        })
    }
}
