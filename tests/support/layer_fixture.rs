//! Layers of test images, also malformed ones.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::EntryType;

use crate::support::image_fixture::{Blob, digest};

/// The modification time of all files in test images.
pub(crate) const CHANGED: u64 = 1_700_000_000;

/// A layer: its tar stream, and its compression.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    tar: Vec<u8>,
    packing: Packing,
}

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    /// Gzip with several members.
    Members,
    Zstd,
}

/// A tar stream that is being written. Names and links are not checked.
pub(crate) struct Tar(tar::Builder<Vec<u8>>);

impl Layer {
    pub(crate) fn new(fill: impl FnOnce(&mut Tar)) -> Self {
        let mut tar = Tar(tar::Builder::new(Vec::new()));
        fill(&mut tar);
        Self { tar: tar.0.into_inner().unwrap(), packing: Packing::Gzip }
    }

    /// Returns a layer with one file of incompressible bytes, the same for the same seed.
    pub(crate) fn noise(name: &str, size: usize, seed: u64) -> Self {
        Self::new(|tar| tar.file(name, 0o644, &noise(size, seed)))
    }

    pub(crate) fn packed(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    pub(crate) fn diff_id(&self) -> String {
        digest(&self.tar)
    }

    /// Returns the uncompressed layer.
    pub(crate) fn tar(&self) -> &[u8] {
        &self.tar
    }

    pub(crate) fn blob(&self) -> Blob {
        let gzip = |part: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap()
        };
        Blob::new(match self.packing {
            Packing::Plain => self.tar.clone(),
            Packing::Gzip => gzip(&self.tar),
            Packing::Members => self.tar.chunks(self.tar.len().div_ceil(3)).flat_map(gzip).collect(),
            Packing::Zstd => zstd::encode_all(&self.tar[..], 1).unwrap(),
        })
    }

    /// Returns the media type of OCI or Docker.
    pub(crate) fn kind(&self, docker: bool) -> &'static str {
        match (docker, self.packing) {
            (false, Packing::Plain) => "application/vnd.oci.image.layer.v1.tar",
            (false, Packing::Gzip | Packing::Members) => "application/vnd.oci.image.layer.v1.tar+gzip",
            (false, Packing::Zstd) => "application/vnd.oci.image.layer.v1.tar+zstd",
            (true, Packing::Plain) => "application/vnd.docker.image.rootfs.diff.tar",
            (true, Packing::Gzip | Packing::Members) => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            (true, Packing::Zstd) => "application/vnd.docker.image.rootfs.diff.tar.zstd",
        }
    }
}

/// Returns pseudo-random bytes, the same for the same seed.
pub(crate) fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(|| random.next().to_le_bytes()).take(size / 8 + 1).flatten().collect();
    bytes.truncate(size);
    bytes
}

/// A pseudo-random generator.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Returns the header of an entry.
pub(crate) fn header(kind: EntryType, name: &str, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(CHANGED);
    // Not `set_path`, which refuses the names of a hostile layer.
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header
}

impl Tar {
    /// Adds an entry of any type, with its checksum.
    pub(crate) fn entry(&mut self, mut header: tar::Header, bytes: &[u8]) {
        if !header.entry_type().is_gnu_sparse() {
            header.set_size(u64::try_from(bytes.len()).unwrap());
        }
        header.set_cksum();
        self.0.append(&header, bytes).unwrap();
    }

    /// Adds bytes that need not be an entry.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().extend_from_slice(bytes);
    }

    pub(crate) fn dir(&mut self, name: &str, mode: u32) {
        self.entry(header(EntryType::Directory, name, mode), &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.entry(header(EntryType::Regular, name, mode), bytes);
    }

    pub(crate) fn owned_file(&mut self, name: &str, (uid, gid): (u64, u64), changed: u64, bytes: &[u8]) {
        let mut header = header(EntryType::Regular, name, 0o640);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_mtime(changed);
        self.entry(header, bytes);
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) {
        self.link(EntryType::Symlink, name, target);
    }

    pub(crate) fn hard_link(&mut self, name: &str, target: &str) {
        self.link(EntryType::Link, name, target);
    }

    fn link(&mut self, kind: EntryType, name: &str, target: &str) {
        let mut header = header(kind, name, 0o777);
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
        self.entry(header, &[]);
    }

    pub(crate) fn device(&mut self, kind: EntryType, name: &str, (major, minor): (u32, u32)) {
        let mut header = header(kind, name, 0o666);
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        self.entry(header, &[]);
    }

    /// Adds an extended attribute to the next entry.
    pub(crate) fn xattr(&mut self, name: &str, value: &[u8]) {
        self.0.append_pax_extensions([(format!("SCHILY.xattr.{name}").as_str(), value)]).unwrap();
    }

    /// Adds a file of `size` bytes that is empty except for `bytes` at `offset`.
    pub(crate) fn sparse(&mut self, name: &str, size: u64, offset: u64, bytes: &[u8]) {
        let mut header = header(EntryType::GNUSparse, name, 0o644);
        header.set_size(u64::try_from(bytes.len()).unwrap());
        let octal = |field: &mut [u8; 12], number: u64| field.copy_from_slice(format!("{number:011o}\0").as_bytes());
        let gnu = header.as_gnu_mut().unwrap();
        octal(&mut gnu.realsize, size);
        octal(&mut gnu.sparse[0].offset, offset);
        octal(&mut gnu.sparse[0].numbytes, u64::try_from(bytes.len()).unwrap());
        self.entry(header, bytes);
    }
}
