use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;

/// Copies `from` and returns the directory with the copy.
fn copied(from: &Path) -> tempfile::TempDir {
    let above = tempfile::tempdir().unwrap();
    let (copy, links) = (above.path().join("copy"), above.path().join("links"));
    fs::create_dir(&copy).unwrap();
    fs::create_dir(&links).unwrap();
    let open = |path: &Path| open_directory(path).unwrap();
    copy_tree(open(from), open(&copy).as_fd(), open(&links).as_fd(), &AtomicBool::new(false)).unwrap();
    above
}

#[test]
fn files_links_and_holes_are_the_same_in_the_copy() {
    let from = tempfile::tempdir().unwrap();
    let at = |name: &str| from.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/file"), "text").unwrap();
    fs::set_permissions(at("a/b/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(at("a/b/file"), at("same")).unwrap();
    fs::hard_link(at("a/b/file"), at("a/third")).unwrap();
    symlink("/etc/../nowhere", at("link")).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 1 << 39).unwrap();
    File::create(at("empty")).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for name in ["a/b/file", "a/b", "a"] {
        File::open(at(name)).unwrap().set_modified(old).unwrap();
    }

    let above = copied(from.path());
    let to = |name: &str| above.path().join("copy").join(name);
    assert_eq!(fs::read_to_string(to("a/b/file")).unwrap(), "text");
    let look = |name: &str| fs::symlink_metadata(to(name)).unwrap();
    assert_eq!(look("a/b/file").mode() & 0o7777, 0o4751);
    assert_eq!((look("same").ino(), look("a/third").ino()), (look("a/b/file").ino(), look("a/b/file").ino()));
    assert_eq!(fs::read_link(to("link")).unwrap(), Path::new("/etc/../nowhere"));
    assert_eq!(look("sparse").len(), 1 << 40);
    assert!(look("sparse").blocks() < 1000, "{} blocks", look("sparse").blocks());
    let mut middle = [0; 13];
    let sparse = File::open(to("sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&sparse, &mut middle, 1 << 39).unwrap();
    assert_eq!(&middle, b"in the middle");
    assert_eq!(look("empty").len(), 0);
    for name in ["a/b/file", "a/b", "a"] {
        assert_eq!(look(name).modified().unwrap(), old, "{name}");
    }
}

#[test]
#[ignore = "needs root"]
fn owners_attributes_and_special_files_are_the_same_in_the_copy() {
    let from = tempfile::tempdir().unwrap();
    let at = |name: &str| from.path().join(name);
    fs::write(at("file"), "").unwrap();
    std::os::unix::fs::chown(at("file"), Some(1000), Some(2000)).unwrap();
    std::os::unix::fs::lchown(from.path(), Some(33), Some(44)).unwrap();
    fs::set_permissions(from.path(), fs::Permissions::from_mode(0o2770)).unwrap();
    let raw = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (name, value) in [("security.capability", &raw[..]), ("trusted.overlay.opaque", b"y")] {
        rustix::fs::setxattr(at("file"), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    node("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("loop", FileType::BlockDevice, rustix::fs::makedev(7, 200));
    node("whiteout", FileType::CharacterDevice, 0);
    symlink("x", at("link")).unwrap();
    std::os::unix::fs::lchown(at("link"), Some(5), Some(6)).unwrap();

    let above = copied(from.path());
    let to = |name: &str| above.path().join("copy").join(name);
    let look = |name: &str| fs::symlink_metadata(to(name)).unwrap();
    assert_eq!((look("file").uid(), look("file").gid()), (1000, 2000));
    assert_eq!((look(".").uid(), look(".").gid(), look(".").mode() & 0o7777), (33, 44, 0o2770));
    assert_eq!((look("link").uid(), look("link").gid()), (5, 6));
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(to("file"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(&value[..length], raw);
    assert!(rustix::fs::getxattr(to("file"), "trusted.overlay.opaque", &mut value[..]).is_err());
    for name in ["fifo", "socket", "null", "loop"] {
        let original = fs::symlink_metadata(at(name)).unwrap();
        assert_eq!((look(name).mode(), look(name).rdev()), (original.mode(), original.rdev()), "{name}");
    }
    assert!(!to("whiteout").exists(), "a whiteout is not copied");
}

#[test]
fn a_cancelled_copy_stops_before_the_next_file() {
    let [from, to, links] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    fs::write(from.path().join("file"), "x").unwrap();
    let open = |dir: &tempfile::TempDir| open_directory(dir.path()).unwrap();
    let copied = copy_tree(open(&from), open(&to).as_fd(), open(&links).as_fd(), &AtomicBool::new(true));
    assert!(copied.unwrap_err().to_string().contains("the copy was cancelled"));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}
