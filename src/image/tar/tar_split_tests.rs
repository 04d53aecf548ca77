use proptest::prelude::*;

use super::*;
use crate::layer::untar::untar;
use crate::limits::Limits;
use crate::test_support::{Head, Tar};

/// Returns a layer directory to unpack into.
fn layer() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("fs")).unwrap();
    directory
}

fn replayed(layer: &Path) -> Result<Vec<u8>, TarSplitError> {
    let mut out = Vec::new();
    assemble(layer, &mut out).map(|()| out)
}

/// Unpacks the stream and compares it with the one assembled from its tar-split.
fn there_and_back(stream: &[u8]) -> tempfile::TempDir {
    let layer = layer();
    untar(stream, layer.path(), &Limits::of_entries(10_000)).unwrap();
    let back = replayed(layer.path()).unwrap();
    assert_eq!(back.len(), stream.len());
    assert!(back == stream, "differs from byte {:?} on", back.iter().zip(stream).position(|(a, b)| a != b));
    layer
}

#[test]
fn a_layer_is_assembled_byte_by_byte() {
    let sparse: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10000000"), ("GNU.sparse.map", b"0,2,9999000,3")];
    let big: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let tar = Tar::default()
        .dir("./")
        .dir("d")
        .file("d/f", b"content")
        .file("d/empty", b"")
        .link("d/h", "d/f")
        .symlink("s", "d")
        .file("s/through", b"a link")
        .pax(&[("path", "long/".repeat(100).as_bytes()), ("comment", b"hello")])
        .file("x", &big)
        .pax(sparse)
        .file("sparse", b"abcde")
        .entry("d/x", &Head { kind: b'g', ..Head::default() }, b"9 a=bcde\n")
        .file("last", b"padded");
    let mut stream = tar.end();
    stream.resize(stream.len() + 9000, 0);
    stream.extend_from_slice(b"not a tar any more");
    there_and_back(&stream);
}

#[test]
fn a_stream_without_end_or_last_padding_is_assembled() {
    let stream = Tar::default().file("f", b"content").0;
    there_and_back(&stream);
    there_and_back(&stream[..512 + 7]);
    there_and_back(b"");
    there_and_back(&[0; 512]);
}

#[test]
fn replaced_content_is_kept_for_the_tar_split() {
    let tar = Tar::default()
        .file("f", b"one")
        .file("f", b"two!")
        .link("g", "f")
        .file("f", b"three")
        .dir("g")
        .file("d/deep/x", b"in a directory")
        .file("d/deep/y", b"")
        .symlink("d", "elsewhere")
        .dir("real")
        .symlink("s", "real")
        .file("s/x", b"through the first link")
        .dir("other")
        .symlink("s", "other")
        .file("s/x", b"through the second")
        .end();
    let layer = there_and_back(&tar);
    let mut replaced: Vec<String> = std::fs::read_dir(layer.path().join("replaced"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    replaced.sort();
    assert_eq!(replaced, ["in a directory", "one", "two!"]);
    let id = crate::Digest::of(&tar);
    let again = tempfile::tempdir().unwrap();
    std::fs::create_dir(again.path().join("fs")).unwrap();
    let unpacked = crate::layer::unpack::unpack(&tar[..], None, &id, again.path(), &crate::Limits::default()).unwrap();
    // The root, eight entries that stayed and three that were replaced: all use inodes.
    assert_eq!(unpacked.usage.inodes, 12);
}

#[test]
fn a_layer_without_a_tar_split_is_reported() {
    let layer = layer();
    assert!(matches!(replayed(layer.path()), Err(TarSplitError::None(path)) if path == layer.path()));
}

#[test]
fn a_truncated_or_foreign_tar_split_and_changed_files_are_errors() {
    let stream = Tar::default().file("d/f", b"content").end();
    let layer = there_and_back(&stream);
    let tar_split = path(layer.path());
    let whole = std::fs::read(&tar_split).unwrap();
    std::fs::write(layer.path().join("fs/d/f"), b"short").unwrap();
    assert!(matches!(replayed(layer.path()), Err(TarSplitError::Read { path, .. }) if path == Path::new("d/f")));
    std::fs::remove_file(layer.path().join("fs/d/f")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", layer.path().join("fs/d/f")).unwrap();
    assert!(matches!(replayed(layer.path()), Err(TarSplitError::Read { .. })));
    std::fs::write(&tar_split, &whole[..whole.len() - 3]).unwrap();
    assert!(replayed(layer.path()).is_err());
    for foreign in
        [&b"crisp tarsplit9\n\x03"[..], b"", &[&MAGIC[..], &[9]].concat(), &[&MAGIC[..], &[RUN; 17]].concat()]
    {
        std::fs::write(&tar_split, zstd::encode_all(foreign, 1).unwrap()).unwrap();
        assert!(replayed(layer.path()).is_err(), "{foreign:?}");
    }
}

/// Returns one entry of a random layer; there are few names, so that entries often collide.
fn entry() -> impl Strategy<Value = (u8, u8, u8, Vec<u8>)> {
    (0u8..9, 0u8..12, 0u8..12, prop::collection::vec(any::<u8>(), 0..1500))
}

fn name(number: u8) -> String {
    ["a", "b", "c", "a/x", "b/x", "a/b/c", "c/x/y", "./a", "b/", "/a/x", "a/x/y/z", "d"][usize::from(number)].to_owned()
}

fn add(tar: Tar, (kind, at, to, data): (u8, u8, u8, Vec<u8>)) -> Tar {
    let (path, target) = (name(at), name(to));
    match kind {
        0..=2 => tar.file(&path, &data),
        3 => tar.dir(&path),
        4 => tar.symlink(&path, &target),
        5 => tar.link(&path, &target),
        6 => tar.pax(&[("path", format!("{path}/{}", "n".repeat(120)).as_bytes())]).file("x", &data),
        7 => {
            let half = data.len() / 2;
            let map = format!("0,{half},{},{}", 10_000 + half, data.len() - half);
            tar.pax(&[("GNU.sparse.size", b"100000"), ("GNU.sparse.map", map.as_bytes())]).file(&path, &data)
        }
        _ => tar
            .entry("long", &Head { kind: b'L', ..Head::default() }, format!("{path}/{}", "l".repeat(110)).as_bytes())
            .file("x", &data),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_unpacked_stream_is_assembled(
        entries in prop::collection::vec(entry(), 1..24),
        after in prop::collection::vec(any::<u8>(), 0..2000),
        zeros in 0usize..3000,
    ) {
        // Entries that are not valid after the previous ones are skipped, so that every stream can
        // be unpacked.
        let mut tar = Tar::default();
        for entry in entries {
            let longer = add(tar.clone(), entry);
            let trial = layer();
            if untar(&longer.0[..], trial.path(), &Limits::of_entries(100)).is_ok() {
                tar = longer;
            }
        }
        let mut stream = tar.0;
        stream.resize(stream.len() + 512 + zeros, 0);
        stream.extend_from_slice(&after);
        there_and_back(&stream);
    }
}
