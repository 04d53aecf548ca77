//! Known attacks by hostile layers, each with its outcome. None may change anything outside of the
//! layer.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::digest::Digest;
use crate::layer::escape_canary::Canary;
use crate::layer::staged_layer::Staged;
use crate::layer::unpack::{Unpacked, unpack};
use crate::limits::Limits;
use crate::test_support::{Head, Tar, gzip};
use model::ErrorClass as _;

/// Attributes, names, numbers and sizes.
#[path = "hostile_values.rs"]
mod values;

/// The outcome of unpacking a layer.
enum Outcome {
    /// It is refused as invalid.
    No,
    /// It is unpacked, but has a link to a file that is not in the layers.
    BadLink,
    /// It is unpacked, and the function checks it.
    Yes(fn(&Layer)),
}

use Outcome::{BadLink, No, Yes};

struct Layer(PathBuf);

impl Layer {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join("fs").join(path)
    }

    fn stat(&self, path: &str) -> std::fs::Metadata {
        std::fs::symlink_metadata(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn mode(&self, path: &str) -> u32 {
        self.stat(path).mode() & 0o7777
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn xattr(&self, path: &str, name: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 1024];
        let length = rustix::fs::lgetxattr(self.at(path), name, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    }
}

/// Unpacks a stream, completes the layer with no layer below, exports it, and checks the canary
/// after each step.
fn attempt(name: &str, stream: &[u8], wanted: &Outcome) {
    let directory = tempfile::tempdir().unwrap();
    let canary = Canary::new(directory.path()).unwrap();
    let layer = canary.layer();
    let unpacked = untar(stream, &layer, &Limits::of_entries(2000));
    canary.check();
    let pending = match (unpacked, wanted) {
        (Ok((pending, _)), BadLink | Yes(_)) => pending,
        (Err(error), No) => {
            let kind = error.kind();
            return assert!(
                matches!(kind, model::ErrorKind::Invalid | model::ErrorKind::Exhausted),
                "{name}: {kind:?}: {error:?}"
            );
        }
        (Ok(_), No) => panic!("{name}: not refused"),
        (Err(error), _) => panic!("{name}: {error:?}"),
    };
    let mut staged = Staged::new(1, layer.clone(), Digest::of(b""), Digest::of(b""), None);
    staged.unpacked(Unpacked { pending, usage: crate::layer::confined_root::DiskUsage::default(), tar_bytes: 0 });
    let adopted = staged.link_across_layers(&[]);
    canary.check();
    match (adopted, wanted) {
        (Ok(()), Yes(look)) => look(&Layer(layer.clone())),
        (Err(error), BadLink) => {
            assert_eq!(crate::store::durable::io_kind(&error), model::ErrorKind::Invalid, "{name}: {error}")
        }
        (adopted, _) => panic!("{name}: {adopted:?}"),
    }
    let mut out = Vec::new();
    crate::assemble(&layer, &mut out).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(out == stream, "{name}: the exported stream differs");
    canary.check();
}

fn run(cases: impl IntoIterator<Item = (impl AsRef<str>, Tar, Outcome)>) {
    for (name, tar, wanted) in cases {
        attempt(name.as_ref(), &tar.end(), &wanted);
    }
}

fn tar() -> Tar {
    Tar::default()
}

fn of_kind(kind: u8) -> Head<'static> {
    Head { kind, mode: 0o777, device: (1, 3), ..Head::default() }
}

/// Returns one entry of each kind at `path`.
fn each_kind(before: &Tar, path: &str) -> Vec<(String, Tar)> {
    let entry = |what: &str, tar: Tar| (format!("{what} at {path}"), tar);
    let of = |kind| before.clone().entry(path, &of_kind(kind), b"");
    vec![
        entry("file", before.clone().file(path, b"written")),
        entry("directory", of(b'5')),
        entry("symbolic link", before.clone().symlink(path, "/nowhere")),
        entry("hard link", before.clone().link(path, "f")),
        entry("character device", of(b'3')),
        entry("block device", of(b'4')),
        entry("fifo", of(b'6')),
    ]
}

/// Returns the path of a whiteout of the last component of `path`.
fn whiteout(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((parent, name)) => format!("{parent}/.wh.{name}"),
        None => format!(".wh.{path}"),
    }
}

#[test]
#[ignore = "needs root"]
fn paths_with_dot_dot_are_refused_for_every_kind_of_entry() {
    let before = tar().file("f", b"");
    for path in ["..", "../outside/file", "a/../../outside/file", "/../outside/file", "./../x", "a/..", "a/../b"] {
        run(each_kind(&before, path).into_iter().map(|(name, tar)| (name, tar, No)));
        run([(format!("whiteout of {path}"), tar().file(&whiteout(path), b""), No)]);
        run([(format!("link to {path}"), tar().link("h", path), No)]);
    }
    for (root, kind) in [("./", b'0'), (".", b'2'), ("/", b'1'), ("", b'3'), ("././", b'6'), ("//", b'4')] {
        let head = Head { link: "f", ..of_kind(kind) };
        run([(format!("{root:?} of kind {kind}"), before.clone().entry(root, &head, b""), No)]);
    }
    run([(
        "absolute path",
        tar().file("/etc/passwd", b"mine"),
        Yes(|layer| assert_eq!(layer.text("etc/passwd"), "mine")),
    )]);
}

#[test]
#[ignore = "needs root"]
fn nothing_is_created_through_a_link_that_leads_outside() {
    let targets = [
        "../../outside",
        "../outside",
        "/proc/self/root",
        "/proc/self/cwd",
        "/proc/1/root/tmp",
        "/",
        "../../../../../..",
    ];
    for target in targets {
        // Links are resolved inside the layer's own root, where most of these targets do not exist.
        let inside = !target.contains("outside") && !target.contains("proc");
        let wanted = || if inside { Yes(|_| ()) } else { No };
        let before = tar().file("f", b"").symlink("o", target);
        for path in ["o/new", "o/file", "o/directory", "o/directory/set-id"] {
            run(each_kind(&before, path).into_iter().map(|(name, tar)| (format!("{target}: {name}"), tar, wanted())));
        }
        for path in ["o/.wh.file", "o/.wh..wh..opq", "o/directory/.wh..wh..opq"] {
            run([(format!("{target}: {path}"), before.clone().file(path, b""), wanted())]);
        }
        run([(format!("{target}: link to o/file"), before.clone().link("h", "o/file"), BadLink)]);
        // A link to a link, and a directory that is replaced by a link after it was opened.
        let chain = tar().symlink("o", target).symlink("p", "o").file("p/file", b"written");
        run([(format!("{target}: over two links"), chain, wanted())]);
        let late = tar().dir("o").file("o/file", b"first").symlink("o", target).file("o/file", b"written");
        run([(format!("{target}: a directory turned link"), late, wanted())]);
    }
    run([
        ("links in a circle", tar().symlink("a", "b").symlink("b", "a").file("a/x", b""), No),
        ("a link to itself", tar().symlink("a", "a").dir("a/x"), No),
        ("a hard link through a circle", tar().symlink("a", "a").link("h", "a/x"), No),
    ]);
}

#[test]
#[ignore = "needs root"]
fn an_entry_replaces_a_link_and_does_not_follow_it() {
    let out = || tar().symlink("s", "../../outside/file").symlink("d", "../../outside/directory");
    run([
        ("file over a link", out().file("s", b"mine"), Yes(|layer| assert_eq!(layer.text("s"), "mine"))),
        (
            "mode through a link",
            out().entry("d", &of_kind(b'5'), b""),
            Yes(|layer| assert!(layer.stat("d").is_dir() && layer.mode("d") == 0o777)),
        ),
        (
            "hard link to a link, then a file over it",
            out().link("q", "s").file("q", b"mine"),
            Yes(|layer| assert!(layer.stat("s").is_symlink() && layer.text("q") == "mine")),
        ),
        (
            "owner and time of a link",
            tar().entry(
                "s",
                &Head { kind: b'2', link: "../../outside/file", uid: 77, mtime: 5, ..Head::default() },
                b"",
            ),
            Yes(|layer| assert_eq!((layer.stat("s").uid(), layer.stat("s").mtime()), (77, 5))),
        ),
        (
            "whiteout of a link",
            out().file(".wh.s", b"").file(".wh.d", b""),
            Yes(|layer| assert!(layer.stat("d").is_symlink())),
        ),
        (
            "file over a hard link",
            tar().file("a", b"first").link("b", "a").file("b", b"second"),
            Yes(|layer| assert_eq!((layer.text("a"), layer.text("b")), ("first".into(), "second".into()))),
        ),
        (
            "mode by a hard link",
            tar().entry("a", &Head { mode: 0o600, ..Head::default() }, b"x").entry(
                "b",
                &Head { link: "a", ..of_kind(b'1') },
                b"",
            ),
            Yes(|layer| assert_eq!(layer.mode("a"), 0o600)),
        ),
        (
            "directory to file and back",
            tar().dir("d").file("d/x", b"1").file("d", b"file").dir("d").file("d/y", b"2"),
            Yes(|layer| assert!(layer.text("d/y") == "2" && !layer.at("d/x").exists())),
        ),
        (
            "file over a fifo and a device, which must not be opened",
            tar().entry("p", &of_kind(b'6'), b"").file("p", b"mine").entry("c", &of_kind(b'3'), b"").file("c", b"mine"),
            Yes(|layer| assert_eq!(layer.text("p") + &layer.text("c"), "minemine")),
        ),
    ]);
}

#[test]
#[ignore = "needs root"]
fn hard_links_reach_only_files_of_the_layers() {
    let link = |target: &str| tar().link("h", target);
    run([
        ("link to a file of the host", link("/etc/passwd"), BadLink),
        ("link to a process", link("/proc/self/exe"), BadLink),
        ("link to the root", link("/"), No),
        ("link to nothing", link(""), No),
        ("link to itself", link("h"), BadLink),
        ("link to a directory", tar().dir("d").link("h", "d"), No),
        ("link below a file", tar().file("f", b"").link("h", "f/x"), No),
        ("link to a whiteout's name", link(".wh.f"), No),
        ("link to a whiteout", tar().file(".wh.f", b"").link("h", "f"), No),
        ("link below a whiteout", tar().file(".wh.d", b"").link("h", "d/f"), No),
        ("link to a link to nothing", tar().link("a", "missing").link("b", "a"), BadLink),
        ("NUL in a link's target", tar().pax(&[("linkpath", b"a\0b")]).link("h", "x"), No),
        (
            "link to a device",
            tar().entry("c", &of_kind(b'3'), b"").link("h", "c"),
            Yes(|layer| assert_eq!(layer.stat("h").rdev(), rustix::fs::makedev(1, 3))),
        ),
        (
            "a link forgotten in time",
            tar().link("h", "missing").file("h", b"mine"),
            Yes(|layer| assert_eq!(layer.text("h"), "mine")),
        ),
        ("something below a link to nothing", tar().link("h", "missing").file("h/x", b""), No),
    ]);
}

#[test]
#[ignore = "needs root"]
fn whiteouts_without_a_name_are_refused_and_unusual_ones_are_harmless() {
    for path in [".wh.", ".wh..", ".wh...", "d/.wh.", "d/.wh..", "d/.wh..."] {
        run([(path, tar().dir("d").file(path, b""), No)]);
    }
    run([
        ("whiteout with content", tar().file(".wh.x", &[7; 3000]), Yes(|layer| assert_eq!(layer.stat("x").rdev(), 0))),
        (
            "whiteout that is a directory",
            tar().dir(".wh.x"),
            Yes(|layer| assert!(layer.stat("x").file_type().is_char_device())),
        ),
        ("whiteout that is a link", tar().symlink(".wh.x", "/etc"), Yes(|layer| assert!(!layer.at(".wh.x").exists()))),
        ("whiteout of a whiteout", tar().file(".wh..wh.x", b""), Yes(|layer| assert!(!layer.at(".wh.x").exists()))),
        (
            "whiteout of what is here",
            tar().file("x", b"kept").file(".wh.x", b""),
            Yes(|layer| assert_eq!(layer.text("x"), "kept")),
        ),
        (
            "opaque root",
            tar().file(".wh..wh..opq", b""),
            Yes(|layer| assert_eq!(layer.xattr("", "trusted.overlay.opaque").as_deref(), Some(&b"y"[..]))),
        ),
    ]);
}

#[test]
#[ignore = "needs root"]
fn devices_are_created_but_never_opened_and_a_whiteout_device_is_refused() {
    let device = |kind, device| tar().entry("x", &Head { device, ..of_kind(kind) }, b"");
    run([
        ("character device 0:0", device(b'3', (0, 0)), No),
        // The console and a whole disk.
        ("console", device(b'3', (5, 1)), Yes(|layer| assert!(layer.stat("x").file_type().is_char_device()))),
        ("watchdog", device(b'3', (10, 130)), Yes(|layer| assert_eq!(layer.mode("x"), 0o777))),
        ("disk", device(b'4', (8, 0)), Yes(|layer| assert!(layer.stat("x").file_type().is_block_device()))),
        ("block device 0:0", device(b'4', (0, 0)), Yes(|layer| assert!(layer.stat("x").file_type().is_block_device()))),
        ("fifo", device(b'6', (0, 0)), Yes(|layer| assert!(layer.stat("x").file_type().is_fifo()))),
        ("socket", device(b's', (0, 0)), No),
        ("attribute on a device", tar().pax(&[("SCHILY.xattr.user.x", b"y")]).entry("x", &of_kind(b'3'), b""), No),
    ]);
}
