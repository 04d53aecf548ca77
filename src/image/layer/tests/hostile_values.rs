//! Attacks by values in a layer: attributes, names, numbers and sizes.

use super::*;

#[test]
#[ignore = "needs root"]
fn attributes_used_by_overlayfs_or_the_host_are_not_set_by_an_image() {
    let with = |name: &str, value: &[u8]| tar().pax(&[(&format!("SCHILY.xattr.{name}"), value)]);
    for name in ["opaque", "redirect", "metacopy", "whiteout", "origin", "impure", "nlink", "upper", "x"] {
        let name = format!("trusted.overlay.{name}");
        run([(&name, with(&name, b"y").file("f", b"x"), No), (&name, with(&name, b"y").dir("d"), No)]);
        run([(&name, with(&name, b"y").dir("./"), No), (&name, with(&name, b"y").symlink("s", "t"), No)]);
    }
    for name in ["trusted.x", "system.nfs4_acl", "user.\0x"] {
        run([(name, with(name, b"y").file("f", b"x"), No)]);
    }
    for name in ["os2.x", "user", "", "Trusted.overlay.opaque", "com.example.x"] {
        let bare = |layer: &Layer| assert_eq!(rustix::fs::llistxattr(layer.at("f"), &mut [0u8; 1024][..]), Ok(0));
        run([(name, with(name, b"y").file("f", b"x"), Yes(bare))]);
        run([(name, with(name, b"y").symlink("s", "x"), Yes(|_| ()))]);
    }
    let capability = b"\x01\0\0\x02\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    run([
        (
            "label",
            with("security.selinux", b"x_t").file("f", b""),
            Yes(|layer| assert_eq!(layer.xattr("f", "security.selinux"), None)),
        ),
        (
            "signature",
            with("security.ima", b"\x01x").file("f", b""),
            Yes(|layer| assert_eq!(layer.xattr("f", "security.ima"), None)),
        ),
        (
            "overlay's for users",
            with("user.overlay.opaque", b"y").dir("d"),
            Yes(|layer| assert!(layer.xattr("d", "user.overlay.opaque").is_some())),
        ),
        (
            "capability, with set-id bits",
            with("security.capability", capability).entry("f", &Head { mode: 0o6755, uid: 5, ..Head::default() }, b"x"),
            Yes(|layer| assert!(layer.xattr("f", "security.capability").is_some() && layer.mode("f") == 0o6755)),
        ),
        ("broken capability", with("security.capability", b"junk").file("f", b"x"), No),
        ("large attribute", with("user.x", &[7; 70_000]).file("f", b"x"), No),
        ("long attribute name", with(&format!("user.{}", "n".repeat(300)), b"x").file("f", b"x"), No),
    ]);
    let names: Vec<String> = (0..2000).map(|number| format!("SCHILY.xattr.user.{number}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    run([("many attributes", tar().pax(&many).file("f", b"x"), No)]);
    let over_headers = many.chunks(100).fold(tar(), |tar, some| tar.pax(some));
    run([("many attributes in many headers", over_headers.file("f", b"x"), No)]);
}

#[test]
#[ignore = "needs root"]
fn names_of_every_byte_and_length_are_accepted_or_refused() {
    let named = |path: &[u8]| tar().pax(&[("path", path)]).file("x", b"named");
    run([
        ("newline", named(b"a\nb"), Yes(|layer| assert_eq!(layer.text("a\nb"), "named"))),
        (
            "no text",
            named(b"\xff\xfe\x80"),
            Yes(|layer| assert_eq!(std::fs::read_dir(layer.at("")).unwrap().count(), 1)),
        ),
        ("option", named(b"--help"), Yes(|layer| assert_eq!(layer.text("--help"), "named"))),
        ("NUL", named(b"a\0b"), No),
        ("255 bytes", named(&[b'n'; 255]), Yes(|layer| assert_eq!(layer.text(&"n".repeat(255)), "named"))),
        ("256 bytes", named(&[b'n'; 256]), No),
        ("as deep as goes", named("d/".repeat(256).as_bytes()), Yes(|_| ())),
        ("one deeper", named("d/".repeat(257).as_bytes()), No),
        ("10 000 deep", named("d/".repeat(10_000).as_bytes()), No),
        ("long and deep", named(vec!["n".repeat(200); 40].join("/").as_bytes()), No),
        ("a mebibyte of slashes", named(&[b'/'; 1_000_000]), No),
        ("link to a long name", tar().pax(&[("linkpath", &[b'l'; 5000])]).symlink("s", "x"), No),
        ("link to nothing", tar().symlink("s", ""), No),
        ("below a file", tar().file("f", b"").file("f/x", b""), No),
        ("below a device", tar().entry("c", &of_kind(b'3'), b"").file("c/x", b""), No),
        ("implied", tar().file("a/b/c", b"x").file("a/b/d", b"y"), Yes(|layer| assert_eq!(layer.mode("a/b"), 0o755))),
    ]);
    // Deeper than the path limit, through a link to a deep directory.
    let deep = "d/".repeat(200);
    let tar = tar()
        .pax(&[("path", deep.as_bytes())])
        .dir("x")
        .pax(&[("linkpath", deep.as_bytes())])
        .symlink("s", "x")
        .pax(&[("path", format!("s/{deep}f").as_bytes())])
        .file("x", b"");
    run([("deep by a link", tar, No)]);
}

#[test]
#[ignore = "needs root"]
fn wrong_numbers_are_refused_and_unusual_ones_kept_if_the_disk_supports_them() {
    let pax = |key: &str, value: &str| tar().pax(&[(key, value.as_bytes())]).file("f", b"data");
    let sparse = |size: &str, map: &str| {
        tar().pax(&[("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", map.as_bytes())]).file("f", b"data")
    };
    run([
        ("size beyond the end", pax("size", "100000"), No),
        ("size beyond everything", pax("size", "18446744073709551615"), No),
        ("size beyond numbers", pax("size", "18446744073709551616"), No),
        ("size too small", pax("size", "0"), No),
        ("negative size", pax("size", "-1"), No),
        ("owner -1", pax("uid", "4294967295"), No),
        ("negative owner", pax("gid", "-1"), No),
        ("largest owner", pax("uid", "4294967294"), Yes(|layer| assert_eq!(layer.stat("f").uid(), 4_294_967_294))),
        (
            "end of time",
            pax("mtime", "9223372036854775807.999999999"),
            Yes(|layer| assert!(layer.stat("f").mtime() > 0)),
        ),
        (
            "beginning of time",
            pax("mtime", "-9223372036854775807.9"),
            Yes(|layer| assert!(layer.stat("f").mtime() < 0)),
        ),
        ("no time", pax("mtime", "never"), No),
        ("beyond time", pax("mtime", "9223372036854775808"), No),
        (
            "all mode bits",
            tar().entry("f", &Head { mode: 0o7_777_777, ..Head::default() }, b""),
            Yes(|layer| assert_eq!(layer.mode("f"), 0o7777)),
        ),
        (
            "a hole of a tebibyte",
            sparse("1099511627776", "0,4"),
            Yes(|layer| assert_eq!(layer.stat("f").len(), 1 << 40)),
        ),
        ("a hole beyond signed numbers", sparse("9223372036854775808", "0,4"), No),
        ("data beyond the file", sparse("3", "0,4"), No),
        ("data beyond numbers", sparse("200", "18446744073709551615,4"), No),
        ("more in the map than in the stream", sparse("200", "0,4,100,1"), No),
        ("data over data", sparse("200", "0,2,1,2"), No),
    ]);
    // The filesystem decides which size is too large; the error must blame the layer.
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("fs")).unwrap();
    if let Err(error) =
        untar(&sparse("4611686018427387904", "0,4").end()[..], directory.path(), &Limits::of_entries(10))
    {
        assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn archive_bombs_stop_at_the_limits() {
    let many = (0..2001).fold(tar(), |tar, _| tar.file("same", b"x"));
    run([("entries", many, No)]);
    let empty = Head { kind: b'x', ..Head::default() };
    let endless = (0..3000).fold(tar(), |tar, _| tar.entry("x", &empty, b""));
    run([("extensions without end", endless.file("f", b""), No)]);
    run([("a long extension", tar().pax(&[("comment", &vec![b'c'; 2 << 20])]).file("f", b""), No)]);
    let some = vec![b'c'; 500_000];
    run([("long extensions", (0..3).fold(tar(), |tar, _| tar.pax(&[("comment", &some)])).file("f", b""), No)]);
    let map = vec!["1,0"; 70_000].join(",");
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"200"), ("GNU.sparse.map", map.as_bytes())];
    run([("a long sparse map", tar().pax(records).file("f", b""), No)]);

    let long = vec!["a".repeat(200); 19].join("/");
    let path = |at: usize| format!("{long}/{at}/f").into_bytes();
    let implied = |count| (0..count).fold(tar(), |tar, at| tar.pax(&[("path", &path(at))]).file("x", b""));
    run([("some directories that are not listed", implied(20), Yes(|_| ()))]);
    run([("too many directories that are not listed", implied(200), No)]);
    let links =
        |count| (0..count).fold(tar(), |tar, at| tar.pax(&[("linkpath", &path(at))]).link(&at.to_string(), "x"));
    run([("some links to long paths", links(20), BadLink), ("too many links to long paths", links(200), No)]);
    let target = format!("missing/{}", "a".repeat(1_000_000));
    run([("a link to a long name", tar().pax(&[("linkpath", target.as_bytes())]).link("h", "x"), No)]);

    let zeros = tar().file("zeros", &vec![0; 4 << 20]).end();
    let limits = Limits { unpacked_bytes: 1 << 20, ..Limits::default() };
    for packed in [zeros.clone(), gzip(&zeros), zstd::encode_all(&zeros[..], 19).unwrap(), gzip(&gzip(&zeros))] {
        let directory = tempfile::tempdir().unwrap();
        let canary = Canary::new(directory.path()).unwrap();
        let outcome = unpack(&packed[..], None, &Digest::of(&zeros), &canary.layer(), &limits);
        assert!(outcome.is_err(), "{outcome:?}");
        canary.check();
    }
}

#[test]
#[ignore = "needs root"]
fn a_stream_cut_at_any_byte_is_refused_or_complete() {
    let sparse: &[(&str, &[u8])] = &[("GNU.sparse.size", b"200"), ("GNU.sparse.map", b"0,2,100,2")];
    let stream = tar().dir("d").file("d/f", b"content").link("d/h", "d/f").pax(sparse).file("s", b"abcd").end();
    let whole: Vec<usize> = (0..stream.len()).step_by(37).chain((0..stream.len()).step_by(512)).collect();
    for length in whole {
        let directory = tempfile::tempdir().unwrap();
        let canary = Canary::new(directory.path()).unwrap();
        if untar(&stream[..length], &canary.layer(), &Limits::of_entries(10)).is_ok() {
            let mut out = Vec::new();
            crate::assemble(&canary.layer(), &mut out).unwrap();
            assert_eq!(out, stream[..length]);
        }
        canary.check();
    }
    let two_members = [gzip(&stream[..700]), gzip(&stream[700..])].concat();
    let two_frames =
        [zstd::encode_all(&stream[..700], 1).unwrap(), zstd::encode_all(&stream[700..], 1).unwrap()].concat();
    for (packed, cut) in [(two_members, 40), (two_frames, 5)] {
        for length in [packed.len(), packed.len() - cut] {
            let directory = tempfile::tempdir().unwrap();
            let canary = Canary::new(directory.path()).unwrap();
            let outcome = unpack(&packed[..length], None, &Digest::of(&stream), &canary.layer(), &Limits::default());
            assert_eq!(outcome.is_ok(), length == packed.len(), "{outcome:?}");
            canary.check();
        }
    }
}
