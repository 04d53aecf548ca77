use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::layer::whiteout::OPAQUE;
use crate::test_support::{Head, Tar};

/// A place to unpack to, with something beside it that must never change.
struct Ground {
    directory: tempfile::TempDir,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("layer/fs")).unwrap();
        std::fs::create_dir(directory.path().join("outside")).unwrap();
        std::fs::write(directory.path().join("outside/file"), "untouched").unwrap();
        Self { directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("layer/fs")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn unpack(&self, tar: Tar) -> Result<Pending, UntarError> {
        let bytes = tar.end();
        let layer = self.directory.path().join("layer");
        // Some tests unpack one stream over another; the tape is the last one's.
        drop(std::fs::remove_file(layer.join("tape")));
        let outcome = untar(&bytes[..], &layer, 1000).map(|(pending, _)| pending);
        let beside: Vec<_> = std::fs::read_dir(self.directory.path()).unwrap().collect();
        assert_eq!(beside.len(), 2, "something was made beside the root");
        let outside: Vec<_> = std::fs::read_dir(self.directory.path().join("outside")).unwrap().collect();
        assert_eq!(outside.len(), 1, "something was made outside");
        let file = self.directory.path().join("outside/file");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "untouched");
        assert_eq!(std::fs::metadata(&file).unwrap().nlink(), 1, "a file outside was linked");
        outcome
    }

    fn stat(&self, path: &str) -> std::fs::Metadata {
        std::fs::symlink_metadata(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }

    fn xattr(&self, path: &str, name: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 1024];
        let length = rustix::fs::lgetxattr(self.at(path), name, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    }
}

fn refused(outcome: Result<Pending, UntarError>) -> bool {
    matches!(outcome, Err(UntarError::Refused { .. }))
}

#[test]
fn files_directories_and_links_come_out_with_their_times() {
    let ground = Ground::new();
    let dir = |mtime| Head { kind: b'5', mode: 0o755, mtime, ..Head::default() };
    let tar = Tar::default()
        .entry("./", &dir(11), b"")
        .entry("d/", &dir(22), b"")
        .entry("d/e/", &dir(33), b"")
        .file("d/e/f", b"content")
        .symlink("d/s", "/nowhere/at/all")
        .link("d/h", "d/e/f")
        .entry("d/e/g", &Head { mtime: 44, ..Head::default() }, b"x");
    assert_eq!(ground.unpack(tar).unwrap(), Pending::default());
    assert_eq!(ground.text("d/h"), "content");
    assert_eq!(ground.stat("d/h").ino(), ground.stat("d/e/f").ino());
    assert_eq!(std::fs::read_link(ground.at("d/s")).unwrap(), Path::new("/nowhere/at/all"));
    let times = ["", "d", "d/e", "d/e/g"].map(|path| ground.stat(path).mtime());
    assert_eq!(times, [11, 22, 33, 44]);
    assert_eq!(ground.stat("d/s").mtime(), 1_000_000_000);
}

#[test]
fn directories_that_are_not_listed_are_made_and_named() {
    let ground = Ground::new();
    let pending = ground.unpack(Tar::default().file("a/b/c", b"").dir("a/")).unwrap();
    assert_eq!(pending.implied, BTreeSet::from([PathBuf::from("a/b")]));
}

#[test]
fn a_later_entry_takes_the_place_of_an_earlier_one() {
    let ground = Ground::new();
    let tar = Tar::default()
        .file("f", b"one")
        .file("f", b"two")
        .dir("d")
        .file("d/x", b"")
        .file("d", b"now a file")
        .file("g", b"")
        .dir("g")
        .symlink("s", "d")
        .dir("s")
        .dir("keep")
        .file("keep/x", b"kept")
        .dir("keep");
    ground.unpack(tar).unwrap();
    assert_eq!((ground.text("f"), ground.text("d")), ("two".into(), "now a file".into()));
    assert!(ground.stat("g").is_dir() && ground.stat("s").is_dir());
    assert_eq!(ground.text("keep/x"), "kept");
}

#[test]
fn a_file_never_writes_through_a_link_of_its_name() {
    let ground = Ground::new();
    let tar = Tar::default()
        .symlink("s", "../outside/file")
        .file("s", b"mine")
        .file("a", b"first")
        .link("b", "a")
        .file("b", b"second");
    ground.unpack(tar).unwrap();
    assert!(ground.stat("s").is_file());
    assert_eq!((ground.text("a"), ground.text("b")), ("first".into(), "second".into()));
}

#[test]
fn paths_cannot_leave_the_root() {
    for path in ["../outside/new", "a/../../outside/new", "..", "a/..", "/../outside/new"] {
        assert!(refused(Ground::new().unpack(Tar::default().file(path, b""))), "{path}");
        assert!(refused(Ground::new().unpack(Tar::default().dir(path))), "{path}");
        assert!(refused(Ground::new().unpack(Tar::default().symlink(path, "x"))), "{path}");
    }
    let ground = Ground::new();
    ground.unpack(Tar::default().file("/etc/passwd", b"inside").file(".//x/./y", b"")).unwrap();
    assert_eq!(ground.text("etc/passwd"), "inside");
    let nul = Tar::default().pax(&[("path", b"a\0b")]).file("x", b"");
    assert!(refused(Ground::new().unpack(nul)));
}

#[test]
fn symbolic_links_on_the_way_are_followed_inside_the_root_only() {
    let ground = Ground::new();
    let tar = Tar::default()
        .dir("usr")
        .dir("usr/lib")
        .symlink("lib", "/usr/lib")
        .file("lib/x", b"x")
        .symlink("up", "../../../../usr")
        .file("up/y", b"y");
    ground.unpack(tar).unwrap();
    assert_eq!((ground.text("usr/lib/x"), ground.text("usr/y")), ("x".into(), "y".into()));

    let ground = Ground::new();
    let outside = ground.directory.path().join("outside");
    for target in [outside.to_str().unwrap(), "../outside", "/proc/self/cwd", "/proc/self/root"] {
        let tar = Tar::default().symlink("s", target).file("s/new", b"");
        assert!(refused(ground.unpack(tar)), "{target}");
        let tar = Tar::default().symlink("s", target).file("s/.wh.file", b"");
        assert!(refused(ground.unpack(tar)), "{target}");
        let tar = Tar::default().symlink("s", target).file("s/.wh..wh..opq", b"");
        assert!(refused(ground.unpack(tar)), "{target}");
    }
    let looping = Tar::default().symlink("a", "b").symlink("b", "a").file("a/x", b"");
    assert!(ground.unpack(looping).is_err());
}

#[test]
fn hard_links_reach_only_what_this_layer_has_and_others_wait() {
    let ground = Ground::new();
    for target in ["../outside/file", "", "."] {
        assert!(refused(ground.unpack(Tar::default().link("h", target))), "{target}");
    }
    let outside = ground.directory.path().join("outside/file");
    for target in [outside.to_str().unwrap(), "/etc/passwd", "missing"] {
        let pending = ground.unpack(Tar::default().link("h", target)).unwrap();
        let target = PathBuf::from(target.trim_start_matches('/'));
        assert_eq!(pending.links.into_iter().collect::<Vec<_>>(), [(PathBuf::from("h"), target)]);
        assert_eq!((ground.stat("h").len(), ground.stat("h").nlink()), (0, 1));
    }
    let pending = ground.unpack(Tar::default().symlink("s", "../outside").link("h", "s/file")).unwrap();
    assert_eq!((pending.links.len(), ground.stat("h").len()), (1, 0));
    // A link to a symbolic link is a second name of the link, not of its target.
    ground.unpack(Tar::default().symlink("p", "../outside/file").link("q", "p")).unwrap();
    assert!(ground.stat("q").is_symlink());
    ground.unpack(Tar::default().file("me", b"still here").link("me", "me")).unwrap();
    assert_eq!(ground.text("me"), "still here");
    assert!(refused(ground.unpack(Tar::default().dir("d").link("e", "d"))));
    assert!(refused(ground.unpack(Tar::default().file("f", b"").link("e", "f/x"))));
}

#[test]
fn a_link_to_a_layer_below_is_forgotten_with_its_place() {
    let tar = Tar::default()
        .link("a", "below")
        .link("b", "a")
        .link("d/c", "below")
        .link("kept", "d/c")
        .file("a", b"mine")
        .file("d", b"mine");
    let pending = Ground::new().unpack(tar).unwrap();
    let below = PathBuf::from("below");
    assert_eq!(
        pending.links.into_iter().collect::<Vec<_>>(),
        [(PathBuf::from("b"), below.clone()), (PathBuf::from("kept"), below)]
    );
    assert_eq!(pending.implied, BTreeSet::new());
}

#[test]
fn depth_entries_and_odd_whiteouts_are_bounded() {
    let deep = "d/".repeat(DEPTH_MAX + 1);
    let tar = Tar::default().pax(&[("path", deep.as_bytes())]).dir("x");
    assert!(refused(Ground::new().unpack(tar)));
    // Deeper by a link to a deep place.
    let half = "d/".repeat(DEPTH_MAX / 2 + 2);
    let tar = Tar::default()
        .pax(&[("path", half.as_bytes())])
        .dir("x")
        .pax(&[("linkpath", half.as_bytes())])
        .symlink("s", "x")
        .pax(&[("path", format!("s/{half}").as_bytes())])
        .dir("x")
        .pax(&[("path", format!("s/{half}/f").as_bytes())])
        .file("x", b"");
    assert!(Ground::new().unpack(tar).is_err());
    let many = (0..1001).fold(Tar::default(), |tar, _| tar.file("same", b""));
    assert!(matches!(Ground::new().unpack(many), Err(UntarError::TooMany(1000))));
    for name in [".wh.", ".wh..", ".wh...", "a/.wh."] {
        assert!(refused(Ground::new().unpack(Tar::default().file(name, b""))), "{name}");
    }
    let root = Tar::default().symlink("./", "/tmp");
    assert!(refused(Ground::new().unpack(root)));
    assert!(refused(Ground::new().unpack(Tar::default().file("f", b"").file("f/x", b""))));
}

#[test]
fn sparse_files_keep_their_holes() {
    let ground = Ground::new();
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10000000"), ("GNU.sparse.map", b"0,2,9999000,3")];
    ground.unpack(Tar::default().pax(records).file("s", b"abcde")).unwrap();
    let stat = ground.stat("s");
    assert_eq!(stat.len(), 10_000_000);
    assert!(stat.blocks() * 512 < 100_000);
    let content = std::fs::read(ground.at("s")).unwrap();
    assert_eq!((&content[..3], &content[9_999_000..9_999_004]), (&b"ab\0"[..], &b"cde\0"[..]));
}

#[test]
fn attributes_an_image_may_not_set_are_refused() {
    for name in ["trusted.overlay.opaque", "trusted.x", "system.x", "user.a\0b"] {
        let key = format!("SCHILY.xattr.{name}");
        let tar = Tar::default().pax(&[(&key, b"y")]).file("f", b"");
        assert!(refused(Ground::new().unpack(tar)), "{name}");
    }
    let key = "SCHILY.xattr.user.x";
    assert!(refused(Ground::new().unpack(Tar::default().pax(&[(key, b"y")]).symlink("s", "t"))));
    let labelled = Tar::default().pax(&[("SCHILY.xattr.security.selinux", b"y")]).file("f", b"");
    let ground = Ground::new();
    ground.unpack(labelled).unwrap();
    assert_eq!(ground.xattr("f", "security.selinux").filter(|label| label == b"y"), None);
}

#[test]
#[ignore = "needs root"]
fn owners_modes_devices_and_capabilities_come_out_as_stored() {
    let ground = Ground::new();
    let capability = b"\x01\0\0\x02\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let suid = Head { mode: 0o6755, uid: 1000, gid: 2000, ..Head::default() };
    let tar = Tar::default()
        .entry("suid", &suid, b"x")
        .pax(&[("SCHILY.xattr.security.capability", capability), ("SCHILY.xattr.user.note", b"a\nb")])
        .entry("cap", &Head { mode: 0o755, uid: 5, gid: 6, ..Head::default() }, b"x")
        .entry("null", &Head { kind: b'3', mode: 0o666, device: (1, 3), ..Head::default() }, b"")
        .entry("disk", &Head { kind: b'4', mode: 0o660, device: (8, 1), gid: 6, ..Head::default() }, b"")
        .entry("pipe", &Head { kind: b'6', mode: 0o600, ..Head::default() }, b"")
        .entry("sticky", &Head { kind: b'5', mode: 0o1777, uid: 7, gid: 8, ..Head::default() }, b"")
        .entry("s", &Head { kind: b'2', link: "x", uid: 9, gid: 10, ..Head::default() }, b"");
    ground.unpack(tar).unwrap();
    let stat = ground.stat("suid");
    assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o6755, 1000, 2000));
    assert_eq!(ground.xattr("cap", "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(ground.xattr("cap", "user.note").as_deref(), Some(&b"a\nb"[..]));
    let null = ground.stat("null");
    assert!(null.file_type().is_char_device());
    assert_eq!((null.rdev(), null.mode() & 0o7777), (rustix::fs::makedev(1, 3), 0o666));
    let disk = ground.stat("disk");
    assert!(disk.file_type().is_block_device());
    assert_eq!((disk.rdev(), disk.gid()), (rustix::fs::makedev(8, 1), 6));
    assert!(ground.stat("pipe").file_type().is_fifo());
    let sticky = ground.stat("sticky");
    assert_eq!((sticky.mode() & 0o7777, sticky.uid(), sticky.gid()), (0o1777, 7, 8));
    assert_eq!((ground.stat("s").uid(), ground.stat("s").gid()), (9, 10));
}

#[test]
#[ignore = "needs root"]
fn whiteouts_become_what_overlayfs_expects() {
    let ground = Ground::new();
    let tar = Tar::default()
        .dir("d")
        .file("d/.wh.gone", b"")
        .file("o/.wh..wh..opq", b"")
        .file(".wh.top", b"")
        .file(".wh..wh.plnk/1.2", b"")
        .file("same", b"here")
        .file(".wh.same", b"")
        .file(".wh.later", b"")
        .file("later", b"here too")
        .file(".wh.dir", b"")
        .dir("dir")
        .dir("dir2")
        .file(".wh.dir2", b"")
        .file(".wh.implied", b"")
        .file("implied/x", b"");
    ground.unpack(tar).unwrap();
    for hidden in ["d/gone", "top"] {
        let stat = ground.stat(hidden);
        assert!(stat.file_type().is_char_device() && stat.rdev() == 0, "{hidden}");
    }
    assert_eq!(ground.stat("d").mtime(), 1_000_000_000);
    for opaque in ["o", "dir", "dir2", "implied"] {
        assert_eq!(ground.xattr(opaque, OPAQUE).as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert_eq!(ground.xattr("d", OPAQUE), None);
    assert_eq!((ground.text("same"), ground.text("later")), ("here".into(), "here too".into()));
}
