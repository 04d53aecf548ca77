//! Decompression of layers, with limited memory.

use std::io::{self, BufReader, Cursor, Read};

use crate::limits::Limits;

const BUFFER: usize = 64 * 1024;
/// The first bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The window sizes zstd supports, as powers of two.
const WINDOW_LOGS: (u32, u32) = (10, 31);
/// Zstd's error codes count down from 0; this one is for a window above the limit.
const WINDOW_TOO_LARGE: usize = 0usize.wrapping_sub(16);

/// A zstd frame needs a larger window than the memory limit allows; carried inside an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("a layer needs a zstd window of more than {0} bytes, its share of image.pull_memory: raise that setting")]
pub(crate) struct WindowTooLarge(pub(crate) u64);

/// Decompresses gzip or zstd, detected by the first bytes; other data is passed through.
pub(crate) fn decompressed<'a>(source: &'a mut (impl Read + 'a), limits: &Limits) -> io::Result<Box<dyn Read + 'a>> {
    let mut first = Vec::with_capacity(4);
    source.by_ref().take(4).read_to_end(&mut first)?;
    let gzip = first.starts_with(&[0x1f, 0x8b]);
    let zstd = first == ZSTD;
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(source));
    if gzip {
        Ok(Box::new(flate2::bufread::MultiGzDecoder::new(whole)))
    } else if zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
        let log = window_log(limits);
        decoder.window_log_max(log)?;
        Ok(Box::new(BoundedDecoder { decoder, window: 1 << log }))
    } else {
        Ok(Box::new(whole))
    }
}

/// Returns whether data with these first bytes needs little memory to decode.
pub(crate) fn is_cheap_to_decode(first: &[u8]) -> bool {
    first.get(..ZSTD.len()).is_some_and(|first| first != ZSTD)
}

/// Returns the largest window as a power of two: three quarters of a layer's memory; the rest is
/// for buffers.
fn window_log(limits: &Limits) -> u32 {
    let (least, most) = WINDOW_LOGS;
    (limits.share() / 4 * 3).max(1).ilog2().clamp(least, most)
}

/// Distinguishes a window that is too large from a corrupt stream.
struct BoundedDecoder<R> {
    decoder: R,
    window: u64,
}

impl<R: Read> Read for BoundedDecoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| {
            let too_large = zstd::zstd_safe::get_error_name(WINDOW_TOO_LARGE);
            if error.to_string() == too_large { io::Error::other(WindowTooLarge(self.window)) } else { error }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns a frame with little content whose window is 2^`log`.
    fn frame(log: u32) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(log).unwrap();
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(b"content").unwrap();
        encoder.finish().unwrap()
    }

    fn read(mut packed: &[u8], limits: &Limits) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        decompressed(&mut packed, limits)?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn a_window_is_bounded_by_a_layers_share_of_the_memory() {
        let limits = Limits { memory_bytes: 64 << 20, downloads: 2, ..Limits::default() };
        assert_eq!(read(&frame(24), &limits).unwrap(), b"content");
        let error = read(&frame(25), &limits).unwrap_err();
        assert!(error.get_ref().is_some_and(|inner| inner.is::<WindowTooLarge>()), "{error}");
        assert!(error.to_string().contains("more than 16777216 bytes"), "{error}");
        // A stream may have several frames; the limit applies to each.
        let error = read(&[frame(20), frame(25)].concat(), &limits).unwrap_err();
        assert!(error.to_string().contains("image.pull_memory"), "{error}");
    }

    #[test]
    fn a_corrupt_stream_is_not_reported_as_a_too_large_window() {
        let mut broken = frame(20);
        let last = broken.len() - 1;
        broken[last] ^= 0xff;
        broken.truncate(last);
        let error = read(&broken, &Limits::default()).unwrap_err();
        assert!(!error.get_ref().is_some_and(|inner| inner.is::<WindowTooLarge>()), "{error}");
    }

    #[test]
    fn minimum_and_maximum_memory_give_windows_that_zstd_accepts() {
        for memory_bytes in [0, u64::MAX] {
            let limits = Limits { memory_bytes, ..Limits::default() };
            assert_eq!(read(&frame(10), &limits).unwrap(), b"content");
        }
    }
}
