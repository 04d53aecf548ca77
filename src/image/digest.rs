//! Content digests: `sha256:<hex>` or `sha512:<hex>`, and readers that compute them.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

/// A digest of some content, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// Text that is not a supported digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest {0:?}: expected sha256: or sha512: and its hexadecimal digits")]
pub struct BadDigest(String);

impl Digest {
    /// Returns the sha256 digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(content);
        hasher.finish()
    }

    /// Returns the digest as `algorithm:hex`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `sha256` or `sha512`.
    pub fn algorithm(&self) -> &str {
        self.0.split_once(':').map_or("", |(algorithm, _)| algorithm)
    }

    /// Returns the lower-case hex digits after the colon.
    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, hex)| hex)
    }

    /// Returns a hasher of the same algorithm.
    pub(crate) fn hasher(&self) -> Hasher {
        match self.algorithm() {
            "sha512" => Hasher::Sha512(Sha512::new()),
            _ => Hasher::sha256(),
        }
    }

    /// Returns whether `content` has this digest.
    pub(crate) fn matches(&self, content: &[u8]) -> bool {
        let mut hasher = self.hasher();
        hasher.update(content);
        hasher.finish() == *self
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest(text.chars().take(160).collect());
        let (algorithm, hex) = text.split_once(':').ok_or_else(bad)?;
        let length = match algorithm {
            "sha256" => 64,
            "sha512" => 128,
            _ => return Err(bad()),
        };
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if hex.len() != length || !hex.bytes().all(lower_hex) {
            return Err(bad());
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A running hash of either kind.
#[derive(Debug, Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub(crate) fn sha256() -> Self {
        Self::Sha256(Sha256::new())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Self::Sha256(hash) => Digest(format!("sha256:{}", hex(&hash.finalize()))),
            Self::Sha512(hash) => Digest(format!("sha512:{}", hex(&hash.finalize()))),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Hashes and counts everything read through it, and fails after `cap` bytes.
#[derive(Debug)]
pub(crate) struct Metered<R> {
    from: R,
    hasher: Hasher,
    seen: u64,
    cap: u64,
}

/// The reader exceeded its cap; carried inside an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("the content of an image (manifest, config or layer) is larger than the maximum of {0} bytes")]
pub(crate) struct PastCap(pub(crate) u64);

impl<R: Read> Metered<R> {
    pub(crate) fn new(from: R, hasher: Hasher, cap: u64) -> Self {
        Self { from, hasher, seen: 0, cap }
    }

    /// Reads to the end and returns the digest and the length of the whole stream.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((self.hasher.finish(), self.seen))
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // After the cap is exceeded, every read fails.
        if self.seen > self.cap {
            return Err(io::Error::other(PastCap(self.cap)));
        }
        let count = self.from.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.seen = self.seen.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        if self.seen > self.cap {
            return Err(io::Error::other(PastCap(self.cap)));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_digests_are_parsed() {
        let good = Digest::of(b"");
        assert_eq!(good.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(good.as_str().parse::<Digest>().unwrap(), good);
        for bad in ["", "sha256:", "sha256:abc", "md5:d41d8cd98f00b204e9800998ecf8427e", good.hex()] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        assert!(good.as_str().to_uppercase().parse::<Digest>().is_err());
        let traversal = format!("sha256:../{}", &good.hex()[3..]);
        assert!(traversal.parse::<Digest>().is_err());
    }

    #[test]
    fn a_sha512_digest_is_checked_with_sha512() {
        let mut hasher = Hasher::Sha512(Sha512::new());
        hasher.update(b"x");
        let digest = hasher.finish();
        assert!(digest.matches(b"x"));
        assert!(!digest.matches(b"y"));
    }

    #[test]
    fn a_metered_reader_stops_past_its_cap() {
        let error = Metered::new(&[0u8; 11][..], Hasher::sha256(), 10).finish().unwrap_err();
        assert!(error.get_ref().is_some_and(|e| e.is::<PastCap>()));
        let (digest, seen) = Metered::new(&[0u8; 10][..], Hasher::sha256(), 10).finish().unwrap();
        assert_eq!((digest, seen), (Digest::of(&[0; 10]), 10));
    }
}
