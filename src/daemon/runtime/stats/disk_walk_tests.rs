use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use safe_fs::tree_walk::OPEN;

use super::*;

/// A deadline that never arrives.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn count(dir: &Path) -> Found {
    Walk::begin(dir, &["upper", "volumes"]).unwrap().advance(never()).unwrap().unwrap()
}

/// Returns what `du` reports: every inode below the directory once.
fn expected(dir: &Path) -> (u64, u64) {
    let mut seen = std::collections::BTreeMap::new();
    let mut rest: Vec<PathBuf> = ["upper", "volumes"].map(|name| dir.join(name)).into();
    while let Some(path) = rest.pop() {
        let Ok(stat) = fs::symlink_metadata(&path) else { continue };
        seen.insert(stat.ino(), stat.blocks() * 512);
        if stat.is_dir() {
            rest.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    (seen.values().sum(), seen.len().try_into().unwrap())
}

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("upper")).unwrap();
    place
}

/// Creates `levels` nested directories, from the innermost, because the path would be too long.
fn nest(top: &Path, levels: u32) {
    fs::create_dir(top.join("new")).unwrap();
    fs::write(top.join("new/file"), [7; 5000]).unwrap();
    for level in 0..levels {
        fs::create_dir(top.join("above")).unwrap();
        fs::write(top.join("above/side"), "x").unwrap();
        fs::rename(top.join("new"), top.join(format!("above/{}", level % 3))).unwrap();
        fs::rename(top.join("above"), top.join("new")).unwrap();
    }
}

#[test]
fn every_file_directory_and_link_counts_once() {
    let place = place();
    let upper = place.path().join("upper");
    assert_eq!((count(place.path()).inodes, count(place.path()).whole), (1, true), "the top itself");
    for n in 0..300 {
        fs::create_dir_all(upper.join(format!("{}/{n}", n % 7))).unwrap();
        fs::write(upper.join(format!("{}/{n}/file", n % 7)), vec![1; n * 100]).unwrap();
    }
    symlink("/etc", upper.join("link")).unwrap();
    fs::create_dir_all(place.path().join("volumes/0/data")).unwrap();
    fs::write(place.path().join("volumes/0/data/file"), [1; 10_000]).unwrap();
    fs::create_dir_all(place.path().join("work/work")).unwrap();
    fs::write(place.path().join("work/not-ours"), [1; 10_000]).unwrap();
    let found = count(place.path());
    assert_eq!((found.bytes, found.inodes), expected(place.path()));
    assert_eq!((found.inodes, found.whole), (1 + 7 + 600 + 1 + 4, true));
}

#[test]
fn a_file_of_many_names_counts_once() {
    let place = place();
    let upper = place.path().join("upper");
    for file in 0..7 {
        fs::write(upper.join(format!("file{file}")), vec![1; 4096 * (file + 1)]).unwrap();
        for name in 0..file * 13 {
            fs::hard_link(upper.join(format!("file{file}")), upper.join(format!("link{file}-{name}"))).unwrap();
        }
    }
    let found = count(place.path());
    assert_eq!((found.bytes, found.inodes), expected(place.path()));
    assert_eq!(found.inodes, 8);
}

#[test]
fn a_walk_can_be_stopped_at_any_point_and_resumed() {
    let place = place();
    let upper = place.path().join("upper");
    for n in 0..20 {
        let dir = upper.join(n.to_string());
        fs::create_dir(&dir).unwrap();
        (0..50).for_each(|file| fs::write(dir.join(file.to_string()), "x").unwrap());
    }
    let mut walk = Walk::begin(place.path(), &["upper"]).unwrap();
    let mut stops = 0;
    let found = loop {
        match walk.advance(Instant::now()).unwrap() {
            Some(found) => break found,
            None => stops += 1,
        }
    };
    assert!(stops > 10, "{stops}");
    assert_eq!((found.bytes, found.inodes), expected(place.path()));
}

#[test]
fn a_tree_of_any_depth_is_counted_with_few_descriptors_and_little_stack() {
    let place = place();
    nest(&place.path().join("upper"), 2_000);
    let dir = place.path().to_owned();
    let little = std::thread::Builder::new().stack_size(64 * 1024);
    let walk = move || {
        let mut walk = Walk::begin(&dir, &["upper"]).unwrap();
        let mut most = 0;
        let found = loop {
            most = most.max(walk.way.open_dirs());
            if let Some(found) = walk.advance(Instant::now()).unwrap() {
                break found;
            }
        };
        (found, most)
    };
    let (found, most) = little.spawn(walk).unwrap().join().unwrap();
    // Each level and its file, the first one's file, and the two at the top.
    assert_eq!((found.inodes, found.whole), (2 * 2_000 + 2 + 1, true));
    assert!(most <= OPEN, "{most}");
    safe_fs::remove_dir(&place.path().join("upper")).unwrap();
}

#[test]
fn entries_that_are_too_deep_are_left_out_and_reported() {
    let place = place();
    nest(&place.path().join("upper"), 20);
    let mut walk = Walk::begin(place.path(), &["upper"]).unwrap();
    walk.deepest = 10;
    // The top, a directory and a file on each of nine levels, and the last directory.
    let found = walk.advance(never()).unwrap().unwrap();
    assert_eq!((found.inodes, found.whole), (1 + 2 * 9 + 1, false));
}

#[test]
fn a_directory_moved_meanwhile_does_not_lead_outside() {
    let place = place();
    let upper = place.path().join("upper");
    fs::create_dir(place.path().join("outside")).unwrap();
    (0..500).for_each(|n| fs::write(place.path().join(format!("outside/{n}")), "x").unwrap());
    let mut deep = upper.clone();
    for level in 0..OPEN + 10 {
        deep.push(level.to_string());
        fs::create_dir(&deep).unwrap();
    }
    (0..300).for_each(|n| fs::write(deep.join(n.to_string()), "x").unwrap());
    let mut walk = Walk::begin(place.path(), &["upper"]).unwrap();
    while walk.way.depth() < OPEN + 10 {
        assert_eq!(walk.advance(Instant::now()).unwrap(), None);
    }
    // The depth from which directories are not kept open: the way back from there leads to the top
    // directly.
    let moved: PathBuf = (0..11).map(|level| level.to_string()).collect();
    fs::rename(upper.join(moved), upper.join("moved")).unwrap();
    let found = walk.advance(never()).unwrap().unwrap();
    assert!(!found.whole);
    assert!(found.inodes <= expected(place.path()).1, "{found:?}");
}

#[test]
fn entries_that_vanish_are_not_failures() {
    let place = place();
    let upper = place.path().join("upper");
    for n in 0..200 {
        fs::create_dir_all(upper.join(format!("{n}/a/b"))).unwrap();
    }
    let mut walk = Walk::begin(place.path(), &["upper"]).unwrap();
    assert_eq!(walk.advance(Instant::now()).unwrap(), None);
    fs::remove_dir_all(&upper).unwrap();
    let found = walk.advance(never()).unwrap().unwrap();
    assert!(found.inodes <= 601, "{found:?}");
    assert_eq!(count(place.path()), Found { bytes: 0, inodes: 0, whole: true }, "nothing there takes nothing");
}

#[test]
fn nothing_but_directories_is_opened() {
    let place = place();
    let upper = place.path().join("upper");
    // Opening a FIFO would wait for its other end.
    nix::unistd::mkfifo(&upper.join("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(upper.join("socket")).unwrap();
    symlink(&upper, upper.join("loop")).unwrap();
    assert_eq!(count(place.path()).inodes, 4);
}
