//! Bounds on what comes from outside, and how one layer shares in them.

use std::time::Duration;

use crate::layer::free_space::Reserve;

const PIPE_MIN: u64 = 16 << 10;
/// More only helps where the network stutters, and there the kernel's own buffers do.
const PIPE_MAX: u64 = 256 << 10;

/// Bounds on what an image may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a manifest, index or image config.
    pub document_bytes: u64,
    /// Bytes of one layer as it is transferred.
    pub layer_bytes: u64,
    /// Bytes of one layer's tar stream once decompressed.
    pub unpacked_bytes: u64,
    /// Entries in one layer's tar stream.
    pub entries: u64,
    /// Layers that are downloaded and unpacked at once, over all pulls.
    pub downloads: usize,
    /// Bytes that all pulls together hold between network and disk, decoders' windows included; each layer gets an
    /// equal share.
    pub memory_bytes: u64,
    /// A transfer that brings less than 64 KiB in this time is broken off and resumed.
    pub stall: Duration,
    /// Room that unpacking leaves free on the file system.
    pub reserve: Reserve,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes: 4 << 20,
            layer_bytes: 32 << 30,
            unpacked_bytes: 128 << 30,
            entries: 4 << 20,
            downloads: 3,
            memory_bytes: 128 << 20,
            stall: Duration::from_secs(60),
            reserve: Reserve::default(),
        }
    }
}

impl Limits {
    /// The usual ones, but for the entries of a layer.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_entries(entries: u64) -> Self {
        Self { entries, ..Self::default() }
    }

    /// The bytes that one layer may use between network and disk, its decoder's window included.
    pub fn share(&self) -> u64 {
        self.memory_bytes / u64::try_from(self.downloads.max(1)).unwrap_or(u64::MAX)
    }

    /// The bytes that the pipe of one layer may hold; most of the share is the decoder's.
    pub(crate) fn pipe(&self) -> usize {
        usize::try_from((self.share() / 4).clamp(PIPE_MIN, PIPE_MAX)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_its_share_of_the_memory_and_a_pipe_a_quarter_of_that_at_most() {
        let limits = |memory_bytes, downloads| Limits { memory_bytes, downloads, ..Limits::default() };
        assert_eq!(limits(128 << 20, 4).share(), 32 << 20);
        assert_eq!(limits(128 << 20, 4).pipe(), 256 << 10);
        assert_eq!(limits(1 << 20, 2).pipe(), 128 << 10);
        assert_eq!(limits(0, 0).pipe(), 16 << 10);
    }
}
