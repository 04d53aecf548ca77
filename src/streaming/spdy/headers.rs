//! Header blocks: names and values, compressed with a state that is shared by the whole connection.

use std::collections::BTreeMap;

use flate2::{Decompress, FlushDecompress, Status};

use super::ProtocolError;
use super::dictionary::{DICTIONARY, ID};

/// The maximum size of a decompressed header block. Those of Kubernetes have three short names.
pub(super) const BLOCK_MAX: usize = 16 << 10;
/// The maximum number of names in a block.
const NAMES_MAX: usize = 64;

/// Headers of a stream, by name in lower case.
pub type Headers = BTreeMap<String, String>;

/// Decodes header blocks in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Inflater {
    /// Created with the first block: most connections have none.
    state: Option<Decompress>,
}

impl Inflater {
    pub(super) fn read(&mut self, compressed: &[u8]) -> Result<Headers, ProtocolError> {
        parse(&self.inflate(compressed)?)
    }

    /// Decompresses all of `compressed`, or fails: after a partly read block the state is unusable.
    fn inflate(&mut self, mut compressed: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        let state = self.state.get_or_insert_with(|| Decompress::new(true));
        let mut out = vec![0; BLOCK_MAX + 1];
        let mut filled = 0;
        while !compressed.is_empty() {
            let (before_in, before_out) = (state.total_in(), state.total_out());
            let outcome = state.decompress(compressed, &mut out[filled..], FlushDecompress::Sync);
            let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let (taken, made) = (moved(state.total_in(), before_in), moved(state.total_out(), before_out));
            compressed = compressed.get(taken..).unwrap_or_default();
            filled += made;
            if filled > BLOCK_MAX {
                return Err(ProtocolError::Headers("are too long"));
            }
            match outcome {
                Err(error) if error.needs_dictionary() == Some(ID) => {
                    state.set_dictionary(&DICTIONARY).map_err(|_| ProtocolError::Headers("use another dictionary"))?;
                }
                Ok(Status::Ok) if taken > 0 || made > 0 => {}
                Ok(Status::StreamEnd) if compressed.is_empty() => {}
                Ok(_) => return Err(ProtocolError::Headers("are not compressed as one stream")),
                Err(_) => return Err(ProtocolError::Headers("are not compressed with zlib")),
            }
        }
        out.truncate(filled);
        Ok(out)
    }
}

fn parse(block: &[u8]) -> Result<Headers, ProtocolError> {
    let mut rest = block;
    let count = number(&mut rest)?;
    if count > NAMES_MAX {
        return Err(ProtocolError::Headers("are too many"));
    }
    let mut headers = Headers::new();
    for _ in 0..count {
        let (name, value) = (text(&mut rest)?, text(&mut rest)?);
        if name.is_empty() || name.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ProtocolError::Headers("have a name that is not in lower case"));
        }
        if headers.insert(name, value).is_some() {
            return Err(ProtocolError::Headers("have a duplicate name"));
        }
    }
    if rest.is_empty() { Ok(headers) } else { Err(ProtocolError::Headers("are longer than declared")) }
}

fn number(rest: &mut &[u8]) -> Result<usize, ProtocolError> {
    let (number, after) = rest.split_first_chunk().ok_or(ProtocolError::Headers("are truncated"))?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).map_err(|_| ProtocolError::Headers("are too long"))
}

fn text(rest: &mut &[u8]) -> Result<String, ProtocolError> {
    let length = number(rest)?;
    let (text, after) = rest.split_at_checked(length).ok_or(ProtocolError::Headers("are truncated"))?;
    *rest = after;
    String::from_utf8(text.to_vec()).map_err(|_| ProtocolError::Headers("are not UTF-8"))
}

/// Encodes header blocks without compression: the server's headers are empty, and a compressor
/// would need 256 KiB per connection.
#[derive(Debug, Default)]
pub(super) struct Storer {
    begun: bool,
}

impl Storer {
    pub(super) fn write(&mut self, headers: &[(&str, &str)], to: &mut Vec<u8>) {
        let mut block = Vec::new();
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
        block.extend(length(headers.len()));
        for (name, value) in headers {
            for part in [name, value] {
                block.extend(length(part.len()));
                block.extend(part.bytes());
            }
        }
        if !self.begun {
            // zlib with a window of 32 KiB and a preset dictionary.
            to.extend([0x78, 0xbb]);
            to.extend(ID.to_be_bytes());
            self.begun = true;
        }
        // The last one is empty, as after a flush: some readers wait for it before they return
        // data.
        for piece in block.chunks(usize::from(u16::MAX)).chain([&[][..]]) {
            // A stored block that is not the last of the stream: length, inverted length, and the
            // bytes.
            let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
            to.push(0);
            to.extend(length.to_le_bytes());
            to.extend((!length).to_le_bytes());
            to.extend(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// Encodes as clients do: one compressor with the dictionary, flushed after each block.
    struct Deflater(Compress);

    impl Deflater {
        fn new() -> Self {
            let mut state = Compress::new(Compression::best(), true);
            state.set_dictionary(&DICTIONARY).unwrap();
            Self(state)
        }

        fn write(&mut self, block: &[u8]) -> Vec<u8> {
            let mut out = vec![0; block.len() + 1024];
            let before = self.0.total_out();
            self.0.compress(block, &mut out, FlushCompress::Sync).unwrap();
            out.truncate(usize::try_from(self.0.total_out() - before).unwrap());
            out
        }
    }

    fn block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
        for part in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
            block.extend(part.bytes());
        }
        block
    }

    #[test]
    fn consecutive_blocks_are_decoded() {
        let (mut deflater, mut inflater) = (Deflater::new(), Inflater::default());
        for headers in [&[("streamtype", "error"), ("port", "80")][..], &[], &[("streamtype", "data")], &[("a", "")]] {
            let read = inflater.read(&deflater.write(&block(headers))).unwrap();
            let wanted: Headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(read, wanted);
        }
    }

    #[test]
    fn stored_blocks_are_decoded_by_any_decompressor() {
        let (mut storer, mut inflater) = (Storer::default(), Inflater::default());
        for headers in [&[][..], &[("streamtype", "data"), ("port", "8080")], &[]] {
            let mut bytes = Vec::new();
            storer.write(headers, &mut bytes);
            let wanted: Headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(inflater.read(&bytes).unwrap(), wanted);
        }
    }

    #[test]
    fn a_decompression_bomb_is_refused_before_it_is_expanded() {
        let value = "0".repeat(4 << 20);
        let bytes = Deflater::new().write(&block(&[("a", &value)]));
        assert!(bytes.len() < 8 << 10, "{}", bytes.len());
        assert_eq!(Inflater::default().read(&bytes), Err(ProtocolError::Headers("are too long")));
    }

    #[test]
    fn blocks_with_wrong_lengths_or_names_are_refused() {
        let read = |block: &[u8]| Inflater::default().read(&Deflater::new().write(block)).unwrap_err();
        assert_eq!(read(&[0, 0]), ProtocolError::Headers("are truncated"));
        assert_eq!(read(&[0, 0, 0, 1, 0, 0, 0, 9, b'a']), ProtocolError::Headers("are truncated"));
        assert_eq!(read(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, b'a']), ProtocolError::Headers("are truncated"));
        assert_eq!(read(&[0xff, 0, 0, 0]), ProtocolError::Headers("are too many"));
        assert_eq!(read(&[0, 0, 0, 0, 7]), ProtocolError::Headers("are longer than declared"));
        assert_eq!(read(&block(&[("a", "1"), ("a", "2")])), ProtocolError::Headers("have a duplicate name"));
        assert_eq!(read(&block(&[("Port", "1")])), ProtocolError::Headers("have a name that is not in lower case"));
        assert_eq!(read(&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0, 0]), ProtocolError::Headers("are not UTF-8"));
        assert!(Inflater::default().read(b"not zlib at all").is_err());
    }
}
