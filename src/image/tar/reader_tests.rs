use proptest::prelude::*;

use super::*;
use crate::tar::sparse::Segment;
use crate::test_support::{Head, Tar};

fn entries(bytes: &[u8]) -> Result<Vec<Entry>, TarError> {
    let mut archive = TarReader::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = archive.next()? {
        entries.push(entry);
    }
    Ok(entries)
}

#[test]
fn a_plain_file_has_its_fields_and_data() {
    let bytes = Tar::default().file("a/b", b"hello").dir("c/").end();
    let mut archive = TarReader::new(&bytes[..]);
    let entry = archive.next().unwrap().unwrap();
    assert_eq!((entry.path.as_slice(), entry.what, entry.size), (&b"a/b"[..], EntryKind::File, 5));
    assert_eq!(entry.mtime, Mtime { seconds: 1_000_000_000, nanos: 0 });
    let mut data = String::new();
    archive.read_to_string(&mut data).unwrap();
    assert_eq!(data, "hello");
    assert_eq!(archive.next().unwrap().unwrap().what, EntryKind::Directory);
    assert!(archive.next().unwrap().is_none());
}

#[test]
fn pax_values_may_contain_any_byte() {
    let value = b"\x01\n0 x=y\n\0\xff";
    let records: &[(&str, &[u8])] =
        &[("SCHILY.xattr.security.capability", value), ("path", b"long/name"), ("mtime", b"-1.25"), ("uid", b"70000")];
    let entry = entries(&Tar::default().pax(records).file("short", b"").end()).unwrap().remove(0);
    assert_eq!(entry.xattrs, [(b"security.capability".to_vec(), value.to_vec())]);
    assert_eq!(entry.path, b"long/name");
    assert_eq!(entry.mtime, Mtime { seconds: -2, nanos: 750_000_000 });
    assert_eq!(entry.uid, 70000);
}

#[test]
fn pax_records_apply_only_to_the_next_entry() {
    let bytes = Tar::default().pax(&[("uid", b"7")]).file("a", b"").file("b", b"").end();
    let entries = entries(&bytes).unwrap();
    assert_eq!(entries[0].uid, 7);
    assert_eq!(entries[1].uid, Head::default().uid);
}

#[test]
fn gnu_long_names_are_read() {
    let name = "n".repeat(300);
    let link = "l".repeat(300);
    let bytes = Tar::default()
        .entry("L", &Head { kind: b'L', ..Head::default() }, format!("{name}\0").as_bytes())
        .entry("K", &Head { kind: b'K', ..Head::default() }, link.as_bytes())
        .symlink("x", "y")
        .end();
    let entry = entries(&bytes).unwrap().remove(0);
    assert_eq!((entry.path, entry.link), (name.into_bytes(), link.into_bytes()));
}

#[test]
fn a_huge_extension_is_refused_before_it_is_read() {
    for kind in *b"xLK" {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().linkflag = [kind];
        header.set_size(1 << 33);
        header.set_cksum();
        assert!(matches!(entries(header.as_bytes()), Err(TarError::Extension(_))));
    }
}

#[test]
fn broken_headers_records_and_truncation_are_errors() {
    let good = Tar::default().file("a", b"data").end();
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    assert!(matches!(entries(&flipped), Err(TarError::Checksum(0))));
    assert!(matches!(entries(&good[..700]), Ok(e) if e.len() == 1), "padding of the last entry may be missing");
    assert!(matches!(entries(&good[..514]), Err(TarError::Read(_))));
    assert!(matches!(entries(&good[..100]), Err(TarError::Read(_))));
    for record in ["x", "5", "9999 a=b\n", "0 a=b\n", "7 ab=cd", "5 ab\n", "-1 a=b\n"] {
        let bytes =
            Tar::default().entry("x", &Head { kind: b'x', ..Head::default() }, record.as_bytes()).file("a", b"").end();
        assert!(matches!(entries(&bytes), Err(TarError::Pax)), "{record:?}");
    }
    let odd = Tar::default().entry("a", &Head { kind: b'V', ..Head::default() }, b"").end();
    assert!(matches!(entries(&odd), Err(TarError::Type(b'V'))));
}

#[test]
fn the_owner_minus_one_is_refused() {
    for id in ["4294967295", "4294967296", "18446744073709551616", "-1"] {
        let bytes = Tar::default().pax(&[("uid", id.as_bytes())]).file("a", b"").end();
        assert!(matches!(entries(&bytes), Err(TarError::Pax)), "{id}");
    }
    let bytes = Tar::default().entry("a", &Head { uid: u32::MAX, ..Head::default() }, b"").end();
    assert!(matches!(entries(&bytes), Err(TarError::Number("uid"))));
}

fn sparse_entry(tar: Tar, path: &str, data: &[u8]) -> Result<(Entry, Vec<u8>), TarError> {
    let bytes = tar.file(path, data).end();
    let mut archive = TarReader::new(&bytes[..]);
    let entry = archive.next()?.unwrap();
    let mut rest = Vec::new();
    archive.read_to_end(&mut rest)?;
    Ok((entry, rest))
}

#[test]
fn all_three_pax_forms_of_sparse_files_yield_the_same_map() {
    let wanted = Some(vec![Segment { offset: 0, length: 2 }, Segment { offset: 100, length: 3 }]);
    let form_00: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", b"200"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"2"),
        ("GNU.sparse.offset", b"100"),
        ("GNU.sparse.numbytes", b"3"),
    ];
    let form_01: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", b"200"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.map", b"0,2,100,3"),
        ("GNU.sparse.name", b"real"),
    ];
    let form_10: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"200"),
        ("GNU.sparse.name", b"real"),
    ];
    let (entry, data) = sparse_entry(Tar::default().pax(form_00), "real", b"abcde").unwrap();
    assert_eq!((entry.segments, entry.size, data.as_slice()), (wanted.clone(), 200, &b"abcde"[..]));
    let (entry, _) = sparse_entry(Tar::default().pax(form_01), "x", b"abcde").unwrap();
    assert_eq!((entry.segments, entry.path.as_slice()), (wanted.clone(), &b"real"[..]));
    let mut stored = b"2\n0\n2\n100\n3\n".to_vec();
    stored.resize(512, 0);
    stored.extend_from_slice(b"abcde");
    let (entry, data) = sparse_entry(Tar::default().pax(form_10), "x", &stored).unwrap();
    assert_eq!((entry.segments, entry.size, data.as_slice()), (wanted, 200, &b"abcde"[..]));
}

#[test]
fn inconsistent_sparse_maps_are_refused() {
    for map in ["0,9", "5,1,0,1", "0,1,0,1", "199,5", "0", "", "0,18446744073709551615,1,1", "x,1"] {
        let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"200"), ("GNU.sparse.map", map.as_bytes())];
        let outcome = sparse_entry(Tar::default().pax(records), "x", b"ab");
        assert!(matches!(outcome, Err(TarError::Sparse)), "{map}: {outcome:?}");
    }
    let endless: &[(&str, &[u8])] = &[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"1")];
    let outcome = sparse_entry(Tar::default().pax(endless), "x", &b"18446744073709551615\n".repeat(100));
    assert!(outcome.is_err());
}

#[test]
fn old_gnu_sparse_files_are_read() {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().linkflag = *b"S";
    header.as_old_mut().name[0] = b'x';
    header.set_size(5);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.sparse[0].set_offset(0);
    gnu.sparse[0].set_length(2);
    gnu.set_real_size(200);
    gnu.set_is_extended(true);
    header.set_cksum();
    let mut more = tar::GnuExtSparseHeader::new();
    more.sparse_mut()[0].set_offset(100);
    more.sparse_mut()[0].set_length(3);
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(more.as_bytes());
    let bytes = Tar(bytes).data(b"abcde").file("next", b"").end();
    let entries = entries(&bytes).unwrap();
    assert_eq!(entries[0].segments.as_deref().map(<[_]>::len), Some(2));
    assert_eq!((entries[0].size, entries[1].path.as_slice()), (200, &b"next"[..]));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        drop(entries(&bytes));
    }

    #[test]
    fn no_header_with_a_right_checksum_makes_the_reader_panic(
        mut header in prop::collection::vec(any::<u8>(), 512..=512),
        kind in prop::sample::select(b"0xLKS5g17".to_vec()),
        body in prop::collection::vec(any::<u8>(), 0..1600),
    ) {
        header[156] = kind;
        header[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let bytes = Tar(header).data(&body).file("after", b"").end();
        drop(entries(&bytes));
    }
}
