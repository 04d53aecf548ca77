//! PAX records: an extension header's values for the entry that follows it.

use std::collections::BTreeMap;

use crate::tar::header::checked_id;
use crate::tar::reader::{Mtime, TarError};
use crate::tar::sparse;

/// More than real files have; the kernel limits the list of names to 64 KiB.
const XATTRS_MAX: usize = 1024;

/// Values of extension headers, PAX and GNU, for the next entry.
#[derive(Debug, Default)]
pub(crate) struct PaxOverrides {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) mtime: Option<Mtime>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) sparse: sparse::Pax,
}

impl PaxOverrides {
    /// Parses PAX records: `length key=value\n`, where the value may contain any byte.
    pub(crate) fn read(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        while !records.is_empty() {
            let space = records.iter().position(|&b| b == b' ').ok_or(TarError::Pax)?;
            let length: usize = decimal(&records[..space])
                .and_then(|n| usize::try_from(n).ok())
                .filter(|&n| n > space + 1 && n <= records.len())
                .ok_or(TarError::Pax)?;
            let record = records[space + 1..length].strip_suffix(b"\n").ok_or(TarError::Pax)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or(TarError::Pax)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        let id = || decimal(value).and_then(checked_id).ok_or(TarError::Pax);
        match key {
            // An empty value removes an earlier or global one.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"linkpath" => self.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or(TarError::Pax)?),
            b"uid" => self.uid = Some(id()?),
            b"gid" => self.gid = Some(id()?),
            b"mtime" => self.mtime = Some(time(value).ok_or(TarError::Pax)?),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattr(name, value)?;
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.record(key, value)?;
                }
                // All other keys (atime, uname, comment, vendor keys) have no effect.
            }
        }
        Ok(())
    }

    fn xattr(&mut self, name: &[u8], value: &[u8]) -> Result<(), TarError> {
        self.xattrs.insert(name.to_vec(), value.to_vec());
        if self.xattrs.len() > XATTRS_MAX { Err(TarError::Xattrs) } else { Ok(()) }
    }
}

/// Parses a PAX number: digits only.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &digit| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses `-12.345678901`: seconds with an optional fraction of any length.
fn time(text: &[u8]) -> Option<Mtime> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = (0..9).fold(0u32, |sum, at| sum * 10 + u32::from(fraction.get(at).map_or(0, |d| d - b'0')));
    Some(match (negative, nanos) {
        (false, _) => Mtime { seconds, nanos },
        (true, 0) => Mtime { seconds: -seconds, nanos },
        (true, _) => Mtime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
    })
}
