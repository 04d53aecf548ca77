use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::layer::whiteout::OPAQUE;
use crate::test_support::{Head, Tar};

/// A directory to unpack to, with files beside it that must not change.
struct TestEnv {
    directory: tempfile::TempDir,
}

impl TestEnv {
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
        // Some tests unpack one stream over another; the tar-split is that of the last one.
        drop(std::fs::remove_file(layer.join("tar-split.zst")));
        let outcome = untar(&bytes[..], &layer, &Limits::of_entries(1000)).map(|(pending, _)| pending);
        let beside: Vec<_> = std::fs::read_dir(self.directory.path()).unwrap().collect();
        assert_eq!(beside.len(), 2, "something was created beside the root");
        let outside: Vec<_> = std::fs::read_dir(self.directory.path().join("outside")).unwrap().collect();
        assert_eq!(outside.len(), 1, "something was created outside");
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
fn files_directories_and_links_are_unpacked_with_their_times() {
    let env = TestEnv::new();
    let dir = |mtime| Head { kind: b'5', mode: 0o755, mtime, ..Head::default() };
    let tar = Tar::default()
        .entry("./", &dir(11), b"")
        .entry("d/", &dir(22), b"")
        .entry("d/e/", &dir(33), b"")
        .file("d/e/f", b"content")
        .symlink("d/s", "/nowhere/at/all")
        .link("d/h", "d/e/f")
        .entry("d/e/g", &Head { mtime: 44, ..Head::default() }, b"x");
    assert_eq!(env.unpack(tar).unwrap(), Pending::default());
    assert_eq!(env.text("d/h"), "content");
    assert_eq!(env.stat("d/h").ino(), env.stat("d/e/f").ino());
    assert_eq!(std::fs::read_link(env.at("d/s")).unwrap(), Path::new("/nowhere/at/all"));
    let times = ["", "d", "d/e", "d/e/g"].map(|path| env.stat(path).mtime());
    assert_eq!(times, [11, 22, 33, 44]);
    assert_eq!(env.stat("d/s").mtime(), 1_000_000_000);
}

#[test]
fn missing_parent_directories_are_created_and_recorded() {
    let env = TestEnv::new();
    let pending = env.unpack(Tar::default().file("a/b/c", b"").dir("a/")).unwrap();
    assert_eq!(pending.implied, BTreeSet::from([PathBuf::from("a/b")]));
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let env = TestEnv::new();
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
    env.unpack(tar).unwrap();
    assert_eq!((env.text("f"), env.text("d")), ("two".into(), "now a file".into()));
    assert!(env.stat("g").is_dir() && env.stat("s").is_dir());
    assert_eq!(env.text("keep/x"), "kept");
}

#[test]
fn a_file_is_not_written_through_a_link_of_its_name() {
    let env = TestEnv::new();
    let tar = Tar::default()
        .symlink("s", "../outside/file")
        .file("s", b"mine")
        .file("a", b"first")
        .link("b", "a")
        .file("b", b"second");
    env.unpack(tar).unwrap();
    assert!(env.stat("s").is_file());
    assert_eq!((env.text("a"), env.text("b")), ("first".into(), "second".into()));
}

#[test]
fn paths_cannot_leave_the_root() {
    for path in ["../outside/new", "a/../../outside/new", "..", "a/..", "/../outside/new"] {
        assert!(refused(TestEnv::new().unpack(Tar::default().file(path, b""))), "{path}");
        assert!(refused(TestEnv::new().unpack(Tar::default().dir(path))), "{path}");
        assert!(refused(TestEnv::new().unpack(Tar::default().symlink(path, "x"))), "{path}");
    }
    let env = TestEnv::new();
    env.unpack(Tar::default().file("/etc/passwd", b"inside").file(".//x/./y", b"")).unwrap();
    assert_eq!(env.text("etc/passwd"), "inside");
    let nul = Tar::default().pax(&[("path", b"a\0b")]).file("x", b"");
    assert!(refused(TestEnv::new().unpack(nul)));
}

#[test]
fn symbolic_links_in_paths_are_followed_inside_the_root_only() {
    let env = TestEnv::new();
    let tar = Tar::default()
        .dir("usr")
        .dir("usr/lib")
        .symlink("lib", "/usr/lib")
        .file("lib/x", b"x")
        .symlink("up", "../../../../usr")
        .file("up/y", b"y");
    env.unpack(tar).unwrap();
    assert_eq!((env.text("usr/lib/x"), env.text("usr/y")), ("x".into(), "y".into()));

    let env = TestEnv::new();
    let outside = env.directory.path().join("outside");
    for target in [outside.to_str().unwrap(), "../outside", "/proc/self/cwd", "/proc/self/root"] {
        let tar = Tar::default().symlink("s", target).file("s/new", b"");
        assert!(refused(env.unpack(tar)), "{target}");
        let tar = Tar::default().symlink("s", target).file("s/.wh.file", b"");
        assert!(refused(env.unpack(tar)), "{target}");
        let tar = Tar::default().symlink("s", target).file("s/.wh..wh..opq", b"");
        assert!(refused(env.unpack(tar)), "{target}");
    }
    let looping = Tar::default().symlink("a", "b").symlink("b", "a").file("a/x", b"");
    assert!(env.unpack(looping).is_err());
}

#[test]
fn hard_links_reach_only_files_of_this_layer_and_others_are_deferred() {
    let env = TestEnv::new();
    for target in ["../outside/file", "", "."] {
        assert!(refused(env.unpack(Tar::default().link("h", target))), "{target}");
    }
    let outside = env.directory.path().join("outside/file");
    for target in [outside.to_str().unwrap(), "/etc/passwd", "missing"] {
        let pending = env.unpack(Tar::default().link("h", target)).unwrap();
        let target = PathBuf::from(target.trim_start_matches('/'));
        assert_eq!(pending.links.into_iter().collect::<Vec<_>>(), [(PathBuf::from("h"), target)]);
        assert_eq!((env.stat("h").len(), env.stat("h").nlink()), (0, 1));
    }
    let pending = env.unpack(Tar::default().symlink("s", "../outside").link("h", "s/file")).unwrap();
    assert_eq!((pending.links.len(), env.stat("h").len()), (1, 0));
    // A link to a symbolic link is a second name of the link, not of its target.
    env.unpack(Tar::default().symlink("p", "../outside/file").link("q", "p")).unwrap();
    assert!(env.stat("q").is_symlink());
    env.unpack(Tar::default().file("me", b"still here").link("me", "me")).unwrap();
    assert_eq!(env.text("me"), "still here");
    assert!(refused(env.unpack(Tar::default().dir("d").link("e", "d"))));
    assert!(refused(env.unpack(Tar::default().file("f", b"").link("e", "f/x"))));
}

#[test]
fn a_deferred_link_is_dropped_when_its_place_is_removed() {
    let tar = Tar::default()
        .link("a", "below")
        .link("b", "a")
        .link("d/c", "below")
        .link("kept", "d/c")
        .file("a", b"mine")
        .file("d", b"mine");
    let pending = TestEnv::new().unpack(tar).unwrap();
    let below = PathBuf::from("below");
    assert_eq!(
        pending.links.into_iter().collect::<Vec<_>>(),
        [(PathBuf::from("b"), below.clone()), (PathBuf::from("kept"), below)]
    );
    assert_eq!(pending.implied, BTreeSet::new());
}

#[test]
fn depth_entries_and_unusual_whiteouts_are_limited() {
    let deep = "d/".repeat(DEPTH_MAX + 1);
    let tar = Tar::default().pax(&[("path", deep.as_bytes())]).dir("x");
    assert!(refused(TestEnv::new().unpack(tar)));
    // Deeper through a link to a deep directory.
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
    assert!(TestEnv::new().unpack(tar).is_err());
    let many = (0..1001).fold(Tar::default(), |tar, _| tar.file("same", b""));
    assert!(matches!(TestEnv::new().unpack(many), Err(UntarError::TooMany(1000))));
    for name in [".wh.", ".wh..", ".wh...", "a/.wh."] {
        assert!(refused(TestEnv::new().unpack(Tar::default().file(name, b""))), "{name}");
    }
    let root = Tar::default().symlink("./", "/tmp");
    assert!(refused(TestEnv::new().unpack(root)));
    assert!(refused(TestEnv::new().unpack(Tar::default().file("f", b"").file("f/x", b""))));
}

#[test]
fn sparse_files_keep_their_holes() {
    let env = TestEnv::new();
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10000000"), ("GNU.sparse.map", b"0,2,9999000,3")];
    env.unpack(Tar::default().pax(records).file("s", b"abcde")).unwrap();
    let stat = env.stat("s");
    assert_eq!(stat.len(), 10_000_000);
    assert!(stat.blocks() * 512 < 100_000);
    let content = std::fs::read(env.at("s")).unwrap();
    assert_eq!((&content[..3], &content[9_999_000..9_999_004]), (&b"ab\0"[..], &b"cde\0"[..]));
}

#[test]
fn attributes_not_allowed_in_an_image_are_refused() {
    for name in ["trusted.overlay.opaque", "trusted.x", "system.x", "user.a\0b"] {
        let key = format!("SCHILY.xattr.{name}");
        let tar = Tar::default().pax(&[(&key, b"y")]).file("f", b"");
        assert!(refused(TestEnv::new().unpack(tar)), "{name}");
    }
    let key = "SCHILY.xattr.user.x";
    assert!(refused(TestEnv::new().unpack(Tar::default().pax(&[(key, b"y")]).symlink("s", "t"))));
    let labelled = Tar::default().pax(&[("SCHILY.xattr.security.selinux", b"y")]).file("f", b"");
    let env = TestEnv::new();
    env.unpack(labelled).unwrap();
    assert_eq!(env.xattr("f", "security.selinux").filter(|label| label == b"y"), None);
}

#[test]
#[ignore = "needs root"]
fn owners_modes_devices_and_capabilities_are_unpacked_as_stored() {
    let env = TestEnv::new();
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
    env.unpack(tar).unwrap();
    let stat = env.stat("suid");
    assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o6755, 1000, 2000));
    assert_eq!(env.xattr("cap", "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(env.xattr("cap", "user.note").as_deref(), Some(&b"a\nb"[..]));
    let null = env.stat("null");
    assert!(null.file_type().is_char_device());
    assert_eq!((null.rdev(), null.mode() & 0o7777), (rustix::fs::makedev(1, 3), 0o666));
    let disk = env.stat("disk");
    assert!(disk.file_type().is_block_device());
    assert_eq!((disk.rdev(), disk.gid()), (rustix::fs::makedev(8, 1), 6));
    assert!(env.stat("pipe").file_type().is_fifo());
    let sticky = env.stat("sticky");
    assert_eq!((sticky.mode() & 0o7777, sticky.uid(), sticky.gid()), (0o1777, 7, 8));
    assert_eq!((env.stat("s").uid(), env.stat("s").gid()), (9, 10));
}

#[test]
#[ignore = "needs root"]
fn whiteouts_become_whiteouts_of_overlayfs() {
    let env = TestEnv::new();
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
    env.unpack(tar).unwrap();
    for hidden in ["d/gone", "top"] {
        let stat = env.stat(hidden);
        assert!(stat.file_type().is_char_device() && stat.rdev() == 0, "{hidden}");
    }
    assert_eq!(env.stat("d").mtime(), 1_000_000_000);
    for opaque in ["o", "dir", "dir2", "implied"] {
        assert_eq!(env.xattr(opaque, OPAQUE).as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert_eq!(env.xattr("d", OPAQUE), None);
    assert_eq!((env.text("same"), env.text("later")), ("here".into(), "here too".into()));
}
