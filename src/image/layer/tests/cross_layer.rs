use std::os::unix::fs::MetadataExt;

use super::*;
use crate::digest::Digest;
use crate::layer::unpack::unpack;
use crate::limits::Limits;
use crate::test_support::{Head, Tar};

/// Layers on top of each other, each linked to those before it.
struct Chain {
    directory: tempfile::TempDir,
    /// Lowest first.
    layers: Vec<Staged>,
}

impl Chain {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), layers: Vec::new() }
    }

    fn add(&mut self, tar: Tar) -> io::Result<()> {
        let tar = tar.end();
        let (number, id) = (self.layers.len() as u64, Digest::of(&tar));
        let directory = self.directory.path().join(number.to_string());
        std::fs::create_dir_all(directory.join("fs")).unwrap();
        let mut staged = Staged::new(number, directory.clone(), id.clone(), id.clone(), None);
        staged.unpacked(unpack(&tar[..], None, &id, &directory, &Limits::default()).unwrap());
        let below: Vec<PathBuf> = self.layers.iter().rev().map(Staged::files).collect();
        let outcome = staged.link_across_layers(&below).and_then(|()| staged.link_across_layers(&below));
        self.layers.push(staged);
        outcome
    }

    fn with(mut self, tar: Tar) -> Self {
        self.add(tar).unwrap();
        self
    }

    fn stat(&self, layer: usize, path: &str) -> std::fs::Metadata {
        std::fs::symlink_metadata(self.layers[layer].files().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn same(&self, (layer, path): (usize, &str), (lower, target): (usize, &str)) -> bool {
        self.stat(layer, path).ino() == self.stat(lower, target).ino()
    }

    /// Returns the error for a layer on top of these.
    fn refusal(mut self, tar: Tar) -> String {
        let error = self.add(tar).unwrap_err();
        assert_eq!(crate::store::durable::io_kind(&error), model::ErrorKind::Invalid, "{error}");
        error.to_string()
    }
}

fn base() -> Tar {
    Tar::default().dir("usr").dir("usr/bin").file("usr/bin/tool", b"tool").symlink("bin", "/usr/bin").file("f", b"f")
}

#[test]
fn a_link_to_a_file_in_a_lower_layer_shares_that_file() {
    let dir = Head { kind: b'5', mode: 0o755, mtime: 77, ..Head::default() };
    let top = Tar::default()
        .entry("usr/", &dir, b"")
        .link("usr/alias", "/usr/bin/tool")
        .link("other", "bin/tool")
        .link("again", "other");
    let chain = Chain::new().with(base()).with(Tar::default().file("middle", b"")).with(top);
    for link in ["usr/alias", "other", "again"] {
        assert!(chain.same((2, link), (0, "usr/bin/tool")), "{link}");
    }
    assert_eq!(chain.stat(2, "usr").mtime(), 77);
    assert_eq!(std::fs::read(chain.layers[2].files().join("again")).unwrap(), b"tool");
    // The root and `usr`; linked files count in the layer below.
    assert_eq!(chain.layers[2].record.inodes, 2);
    let mut out = Vec::new();
    crate::assemble(&chain.layers[2].directory, &mut out).unwrap();
    assert_eq!(Digest::of(&out), chain.layers[2].record.diff_id);
}

#[test]
fn a_link_uses_the_nearest_lower_layer() {
    let chain = Chain::new()
        .with(base())
        .with(Tar::default().file("usr/bin/tool", b"newer"))
        .with(Tar::default().link("h", "bin/tool"));
    assert!(chain.same((2, "h"), (1, "usr/bin/tool")));
}

#[test]
fn links_to_missing_files_directories_and_later_files_are_refused() {
    let link = |target: &str| Tar::default().link("h", target);
    assert!(Chain::new().refusal(link("f")).contains("file not found"));
    assert!(Chain::new().with(base()).refusal(link("missing")).contains("file not found"));
    assert!(Chain::new().with(base()).refusal(link("f/x")).contains("file not found"));
    assert!(Chain::new().with(base()).refusal(link("usr/bin")).contains("directory"));
    assert!(Chain::new().with(base()).refusal(link("h")).contains("after the link"));
    assert!(Chain::new().with(base()).refusal(link("f").file("f", b"later")).contains("after the link"));
}

#[test]
fn a_link_through_a_lower_layer_cannot_leave_the_layers() {
    for target in ["/etc", "../../../../../../../../etc", "/proc/self/root/etc", "loop"] {
        let lower = Tar::default().symlink("s", target).symlink("loop", "loop");
        assert!(Chain::new().with(lower).refusal(Tar::default().link("h", "s/passwd")).contains("file not found"));
    }
    let lower = Tar::default().symlink("s", "/etc/passwd");
    let chain = Chain::new().with(lower).with(Tar::default().link("h", "s"));
    assert!(chain.stat(1, "h").is_symlink());
}

#[test]
fn implied_directories_get_the_metadata_of_the_lower_layer() {
    let odd = Head { kind: b'5', mode: 0o1770, mtime: 99, ..Head::default() };
    let lower = Tar::default().entry("a/", &odd, b"").entry("a/b/", &odd, b"").file("f", b"");
    let chain = Chain::new().with(lower).with(Tar::default().file("a/b/c/d", b""));
    for path in ["a", "a/b"] {
        assert_eq!((chain.stat(1, path).mode() & 0o7777, chain.stat(1, path).mtime()), (0o1770, 99), "{path}");
    }
    assert_eq!(chain.stat(1, "a/b/c").mode() & 0o7777, 0o755);
}

#[test]
#[ignore = "needs root"]
fn whiteouts_and_opaque_directories_hide_lower_files_from_links() {
    let link = || Tar::default().link("h", "usr/bin/tool");
    let removed = [
        Tar::default().file("usr/bin/.wh.tool", b""),
        Tar::default().file("usr/.wh.bin", b""),
        Tar::default().file(".wh.usr", b""),
        Tar::default().file("usr/.wh..wh..opq", b""),
        Tar::default().file(".wh..wh..opq", b""),
        Tar::default().file("usr", b"a file"),
    ];
    for between in removed {
        let why = Chain::new().with(base()).with(between.clone()).refusal(link());
        assert!(why.contains("file not found"), "{why}");
        let own = Tar(link().0.into_iter().chain(between.0).collect());
        Chain::new().with(base()).refusal(own);
    }
    // In reverse order the layer is refused during unpacking.
    for gone in [".wh.f", "d/.wh.f"] {
        let target = gone.replace(".wh.", "");
        let tar = Tar::default().file(gone, b"").link("h", &target).end();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("fs")).unwrap();
        let outcome = unpack(&tar[..], None, &Digest::of(&tar), directory.path(), &Limits::default());
        assert!(outcome.is_err(), "{gone}");
    }
}

#[test]
#[ignore = "needs root"]
fn metadata_is_not_copied_from_a_hidden_directory() {
    let odd = Head { kind: b'5', mode: 0o700, mtime: 99, ..Head::default() };
    let lower = || Tar::default().entry("a/", &odd, b"").entry("a/b/", &odd, b"");
    let new = Tar::default().file(".wh.a", b"").file("a/b/c", b"");
    let chain = Chain::new().with(lower()).with(new);
    assert_eq!(chain.stat(1, "a").mode() & 0o7777, 0o755);
    assert_eq!(chain.stat(1, "a/b").mode() & 0o7777, 0o755);
    let chain = Chain::new().with(lower()).with(Tar::default().file("a/.wh..wh..opq", b"").file("a/b/c", b""));
    assert_eq!(chain.stat(1, "a").mode() & 0o7777, 0o700);
    assert_eq!(chain.stat(1, "a/b").mode() & 0o7777, 0o755);
}

#[test]
#[ignore = "needs root"]
fn an_opaque_root_hides_all_lower_layers() {
    let top = Tar::default().file(".wh..wh..opq", b"").file("usr/new", b"").file("f", b"mine");
    let chain = Chain::new().with(base()).with(Tar::default().file("middle", b"")).with(top);
    let mount_point = chain.directory.path().join("view");
    std::fs::create_dir(&mount_point).unwrap();
    let lowers = [2, 1, 0].map(model::LayerNumber::new);
    let files = ["usr/bin/tool", "bin/tool", "middle", "usr/new", "f"];
    let seen = crate::rootfs::read_files::read_files(chain.directory.path(), &lowers, &mount_point, files, 10).unwrap();
    assert_eq!(seen, [None, None, None, Some(Vec::new()), Some(b"mine".to_vec())]);
}
