//! Limits for input from outside, and the share of one layer.

use std::time::Duration;

use crate::layer::free_space::Reserve;

const PIPE_MIN: u64 = 16 << 10;
/// A larger pipe helps only when the network stalls; the kernel's socket buffers cover that.
const PIPE_MAX: u64 = 256 << 10;

/// Limits for the content of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of a manifest, index or image config, in bytes.
    pub document_bytes: u64,
    /// Size of one layer as it is transferred, in bytes.
    pub layer_bytes: u64,
    /// Size of one layer's decompressed tar stream, in bytes.
    pub unpacked_bytes: u64,
    /// Number of entries in one layer's tar stream.
    pub entries: u64,
    /// Number of layers that all pulls together download and unpack at once.
    pub downloads: usize,
    /// Bytes that all pulls together buffer between network and disk, decoder windows included;
    /// each layer gets an equal share.
    pub memory_bytes: u64,
    /// A transfer of less than 64 KiB in this time is aborted and resumed.
    pub stall: Duration,
    /// Free space on the file system that unpacking must leave.
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
    /// The default limits with another number of entries per layer.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_entries(entries: u64) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Returns how many bytes one layer may buffer between network and disk, its decoder's window
    /// included.
    pub fn share(&self) -> u64 {
        self.memory_bytes / u64::try_from(self.downloads.max(1)).unwrap_or(u64::MAX)
    }

    /// Returns how many bytes the pipe of one layer may hold; most of the share is the decoder's.
    pub(crate) fn pipe(&self) -> usize {
        usize::try_from((self.share() / 4).clamp(PIPE_MIN, PIPE_MAX)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_its_share_of_the_memory_and_a_pipe_at_most_a_quarter_of_it() {
        let limits = |memory_bytes, downloads| Limits { memory_bytes, downloads, ..Limits::default() };
        assert_eq!(limits(128 << 20, 4).share(), 32 << 20);
        assert_eq!(limits(128 << 20, 4).pipe(), 256 << 10);
        assert_eq!(limits(1 << 20, 2).pipe(), 128 << 10);
        assert_eq!(limits(0, 0).pipe(), 16 << 10);
    }
}
