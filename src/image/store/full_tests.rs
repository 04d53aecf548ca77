//! A full disk at every step: a clear error, no partial changes, and success once there is space
//! again.

use std::path::{Path, PathBuf};

use model::ErrorClass as _;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::Compress;
use crate::archive::export::ExportError;
use crate::archive::progress::ignore_progress;
use crate::limits::Limits;
use crate::registry::endpoint::Registries;
use crate::store::Store;
use crate::store::test_support::{add, names, open, try_add, walk};
use crate::test_support::Tar;

/// A separate small filesystem.
struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    fn new(options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self { directory }
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Uses all space except `blocks` pages and `inodes` files until the returned value is dropped.
    fn fill(&self, blocks: u64, inodes: u64) -> Ballast {
        let path = self.directory.path().join("ballast");
        std::fs::create_dir(&path).unwrap();
        let stat = rustix::fs::statvfs(self.directory.path()).unwrap();
        if let Some(take) = stat.f_bavail.checked_sub(blocks).filter(|take| *take > 0) {
            let file = std::fs::File::create(path.join("blocks")).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, take * stat.f_frsize).unwrap();
        }
        let left = rustix::fs::statvfs(self.directory.path()).unwrap().f_favail;
        for at in 0..left.saturating_sub(inodes).min(10_000) {
            std::fs::File::create(path.join(format!("inode-{at}"))).unwrap();
        }
        Ballast(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(self.directory.path(), UnmountFlags::DETACH).unwrap();
    }
}

struct Ballast(PathBuf);

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn layer(of: u8) -> Vec<u8> {
    (0..6).fold(Tar::default(), |tar, at| tar.file(&format!("file-{of}-{at}"), &vec![of; 9000])).end()
}

/// Returns the whole chain of an error, as an operator sees it.
fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn same_as_before(store: &Store, root: &Path, before: &crate::Usage, what: &str) {
    assert!(names(&root.join("tmp")).is_empty(), "{what}: {:?}", names(&root.join("tmp")));
    assert!(names(&root.join("images")).iter().all(|name| name.ends_with(".json")), "{what}");
    assert_eq!(store.usage(), *before, "{what}");
    let real = walk(root);
    assert_eq!((before.bytes, before.inodes), (real.bytes, real.inodes), "{what}");
}

/// Repeats an addition with more and more space, until it succeeds; each failure must change
/// nothing.
fn fails_cleanly_until_there_is_room(disk: &Disk, room: impl Fn(u64) -> (u64, u64)) {
    let root = disk.store();
    let store = open(&root);
    store.remove_unused().unwrap();
    add(&store, &[layer(1)], "a.b/x:1");
    let before = store.usage();
    let mut failures = Vec::new();
    for step in 0.. {
        assert!(step < 400, "it never succeeds");
        let (blocks, inodes) = room(step);
        let ballast = disk.fill(blocks, inodes);
        // The tag moves from the other image.
        match try_add(&store, &[layer(1), layer(2), layer(3)], "a.b/x:1") {
            Ok(_) => break,
            Err(error) => {
                let words = text(error.cause());
                assert_eq!(error.kind(), model::ErrorKind::Exhausted, "{words}");
                assert!(words.contains("No space left"), "{words}");
                assert!(words.contains("store/") || words.contains("layer entry"), "{words}");
                same_as_before(&store, &root, &before, &words);
                failures.push(words);
            }
        }
        assert_eq!(store.find("a.b/x:1").unwrap().chain.len(), 1, "the tag has not moved");
        drop(ballast);
    }
    for part in ["layer entry", "layer.json", "blobs/", "images/"] {
        assert!(failures.iter().any(|words| words.contains(part)), "{part} never failed: {failures:#?}");
    }
    assert_eq!(store.find("a.b/x:1").unwrap().chain.len(), 3);
    drop(store);
    let store = open(&root);
    store.remove_unused().unwrap();
    assert_eq!((store.list().len(), store.find("a.b/x:1").unwrap().chain.len()), (2, 3));
}

#[test]
#[ignore = "needs root"]
fn a_disk_without_blocks_fails_every_step_cleanly() {
    fails_cleanly_until_there_is_room(&Disk::new("size=2m"), |step| (step, u64::MAX));
}

#[test]
#[ignore = "needs root"]
fn a_disk_without_inodes_fails_every_step_cleanly() {
    fails_cleanly_until_there_is_room(&Disk::new("size=8m,nr_inodes=200"), |step| (u64::MAX, step));
}

#[test]
#[ignore = "needs root"]
fn unpacking_leaves_a_reserve_for_the_node() {
    let disk = Disk::new("size=40m,nr_inodes=4000");
    let store = Store::open(&disk.store(), Registries::default(), Limits::default()).unwrap();
    let before = store.usage();
    let many = (0..3000).fold(Tar::default(), |tar, at| tar.file(&format!("{at}"), b"")).end();
    let large = Tar::default().file("large", &vec![7; 30 << 20]).end();
    for (tar, room, unit) in [(large, (12 << 20 >> 12, u64::MAX), "bytes"), (many, (u64::MAX, 2000), "inodes")] {
        let _ballast = disk.fill(room.0, room.1);
        let error = try_add(&store, &[tar], "a.b/x:1").unwrap_err();
        let words = text(error.cause());
        assert_eq!(error.kind(), model::ErrorKind::Exhausted, "{words}");
        assert!(
            words.contains("no space left for image layers") && words.contains(&format!("{unit} are free")),
            "{words}"
        );
        assert_eq!((store.usage(), names(&disk.store().join("tmp"))), (before.clone(), Vec::new()), "{words}");
    }
    add(&store, &[layer(1)], "a.b/x:1");
}

#[test]
#[ignore = "needs root"]
fn an_attribute_too_large_for_the_file_system_is_not_reported_as_a_full_disk() {
    // tmpfs stores attributes in the memory limit of its inodes, which is small here.
    let disk = Disk::new("size=8m,nr_inodes=40");
    let store = open(&disk.store());
    let large = Tar::default().pax(&[("SCHILY.xattr.user.large", &[b'x'; 60_000])]).file("file", b"").end();
    let error = try_add(&store, &[large], "a.b/x:1").unwrap_err();
    let words = text(error.cause());
    assert_eq!(error.kind(), model::ErrorKind::Invalid, "{words}");
    assert!(words.contains("extended attributes") && !words.contains("No space left"), "{words}");
}

#[test]
#[ignore = "needs root"]
fn removing_and_pruning_work_on_a_full_disk() {
    let disk = Disk::new("size=2m,nr_inodes=400");
    let root = disk.store();
    let store = open(&root);
    store.remove_unused().unwrap();
    add(&store, &[layer(1)], "a.b/x:1");
    let image = add(&store, &[layer(1), layer(2)], "a.b/x:2");
    add(&store, &[layer(3)], "a.b/x:3");
    let before = store.usage();
    let _ballast = disk.fill(0, 0);
    store.remove(image.id.as_str()).unwrap();
    assert!(store.usage().bytes < before.bytes);
    let pruned = store.prune(|image| image.repo_tags.contains(&"a.b/x:1".to_owned())).unwrap();
    assert_eq!((pruned.images.len(), store.list().len()), (1, 1));
    assert!(pruned.bytes > 50_000, "{}", pruned.bytes);
    assert_eq!(names(&store.layers_dir()).len(), 1);
    let (usage, real) = (store.usage(), walk(&root));
    assert_eq!((usage.bytes, usage.inodes), (real.bytes, real.inodes));
}

#[test]
#[ignore = "needs root"]
fn adding_a_name_on_a_full_disk_fails_and_changes_nothing() {
    let disk = Disk::new("size=1m,nr_inodes=400");
    let store = open(&disk.store());
    let image = add(&store, &[layer(1)], "a.b/x:1");
    let before = store.usage();
    let ballast = disk.fill(0, 5);
    let error = store.catalog.name(&image.id, &["a.b/y:1".to_owned()], &[]).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Exhausted);
    same_as_before(&store, &disk.store(), &before, "naming");
    assert_eq!(store.find("a.b/y:1"), None);
    drop(ballast);
    assert!(store.catalog.name(&image.id, &["a.b/y:1".to_owned()], &[]).unwrap().is_some());
    assert!(store.find("a.b/y:1").is_some());
}

#[test]
#[ignore = "needs root"]
fn spooling_on_a_full_disk_fails_and_leaves_no_files() {
    let disk = Disk::new("size=1m,nr_inodes=400");
    let elsewhere = tempfile::tempdir().unwrap();
    let source = open(&elsewhere.path().join("store"));
    let image = add(&source, &[layer(1), layer(2)], "a.b/x:1");
    let mut plain = Vec::new();
    source.export(&[image.id.to_string()], Compress::No, &mut plain, &ignore_progress).unwrap();
    let archive = elsewhere.path().join("archive.tar.gz");
    std::fs::write(&archive, crate::test_support::gzip(&plain)).unwrap();
    let store = open(&disk.store());
    store.remove_unused().unwrap();
    let before = store.usage();
    let ballast = disk.fill(10, 50);
    let error = store.import(&archive, None, &ignore_progress).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Exhausted, "{}", text(&error));
    assert!(text(&error).contains("tmp/spool-") && text(&error).contains("No space left"), "{}", text(&error));
    same_as_before(&store, &disk.store(), &before, "importing");
    drop(ballast);
    assert_eq!(store.import(&archive, None, &ignore_progress).unwrap()[0].id, image.id);
    // Layers are compressed to a temporary file in the store.
    let _ballast = disk.fill(0, 50);
    for compress in [Compress::Gzip, Compress::Zstd] {
        let error =
            store.export(&[image.id.to_string()], compress, &mut std::io::sink(), &ignore_progress).unwrap_err();
        assert!(matches!(error, ExportError::Disk(_)), "{error:?}");
        assert_eq!(error.kind(), model::ErrorKind::Exhausted, "{}", text(&error));
    }
    store.export(&[image.id.to_string()], Compress::No, &mut std::io::sink(), &ignore_progress).unwrap();
}
