use super::*;
use crate::test_support::{Tar, gzip};

fn tar() -> Vec<u8> {
    Tar::default().dir("d").file("d/f", &b"content ".repeat(1000)).end()
}

fn try_unpack(blob: &[u8], named: Option<&Blob>, diff_id: &Digest, limits: &Limits) -> Result<Unpacked, UnpackError> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("fs")).unwrap();
    unpack(blob, named, diff_id, directory.path(), limits)
}

fn blob_of(bytes: &[u8]) -> Blob {
    Blob { digest: Digest::of(bytes), size: bytes.len() as u64 }
}

#[test]
fn gzip_zstd_and_plain_layers_unpack_to_the_same_size() {
    let tar = tar();
    let two_members = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    let zstd = zstd::encode_all(&tar[..], 3).unwrap();
    let weights = [tar.clone(), gzip(&tar), two_members, zstd].map(|packed| {
        let named = blob_of(&packed);
        try_unpack(&packed, Some(&named), &Digest::of(&tar), &Limits::default()).unwrap().usage
    });
    assert_eq!(weights[0].inodes, 3);
    assert!(weights.iter().all(|usage| *usage == weights[0]));
}

#[test]
fn a_wrong_blob_is_reported_as_wrong_even_if_it_cannot_be_decoded() {
    let (tar, limits) = (tar(), Limits::default());
    let packed = gzip(&tar);
    let named = blob_of(&packed);
    let mut broken = packed.clone();
    broken[20] ^= 0xff;
    let outcome = try_unpack(&broken, Some(&named), &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::Blob { .. })), "{outcome:?}");
    let outcome = try_unpack(&packed[..100], Some(&named), &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::Length { found: 100, .. })), "{outcome:?}");
    let longer = [packed, vec![0; 10]].concat();
    let outcome = try_unpack(&longer, Some(&named), &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::Length { .. })), "{outcome:?}");
}

#[test]
fn the_diff_id_covers_bytes_after_the_tar_archive() {
    let tar = tar();
    let padded = [tar.clone(), vec![7; 5000]].concat();
    let limits = Limits::default();
    assert!(try_unpack(&padded, None, &Digest::of(&padded), &limits).is_ok());
    let outcome = try_unpack(&padded, None, &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::DiffId { .. })), "{outcome:?}");
}

#[test]
fn an_archive_bomb_stops_at_the_limit() {
    let tar = Tar::default().file("zeros", &vec![0; 8 << 20]).end();
    let packed = gzip(&tar);
    assert!(packed.len() < 100_000);
    let named = blob_of(&packed);
    let limits = Limits { unpacked_bytes: 1 << 20, ..Limits::default() };
    let outcome = try_unpack(&packed, Some(&named), &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::TooLarge(_))), "{outcome:?}");
    let limits = Limits { layer_bytes: 1000, ..Limits::default() };
    let outcome = try_unpack(&packed, Some(&named), &Digest::of(&tar), &limits);
    assert!(matches!(outcome, Err(UnpackError::TooLarge(1000))), "{outcome:?}");
}

#[test]
fn a_zstd_window_above_the_memory_limit_is_refused_naming_the_setting() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(26).unwrap();
    encoder.include_contentsize(false).unwrap();
    std::io::Write::write_all(&mut encoder, &tar()).unwrap();
    let packed = encoder.finish().unwrap();
    let limits = Limits { memory_bytes: 32 << 20, downloads: 2, ..Limits::default() };
    let error = try_unpack(&packed, Some(&blob_of(&packed)), &Digest::of(&tar()), &limits).unwrap_err();
    assert!(matches!(error, UnpackError::Window(8_388_608)), "{error:?}");
    assert!(error.to_string().contains("image.pull_memory"), "{error}");
    let limits = Limits { memory_bytes: 256 << 20, ..limits };
    assert!(try_unpack(&packed, None, &Digest::of(&tar()), &limits).is_ok());
}
