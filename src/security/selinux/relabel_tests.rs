use std::fs;
use std::os::unix::fs::symlink;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use safe_fs::tree_walk::OPEN;

use super::*;

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

/// Reads the label; a kernel without SELinux stores the attribute for root too.
fn label(path: &Path) -> Option<String> {
    let mut value = [0; 256];
    let length = rustix::fs::lgetxattr(path, ATTRIBUTE, &mut value[..]).ok()?;
    Some(String::from_utf8(value[..length].to_vec()).unwrap().trim_end_matches('\0').to_owned())
}

fn is_labelled(path: &Path) -> bool {
    label(path).as_deref() == Some(LABEL)
}

#[test]
#[ignore = "needs root"]
fn a_whole_tree_is_labelled_without_following_links() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
    fs::create_dir_all(volume.join("a/b")).unwrap();
    fs::create_dir_all(outside.join("deep")).unwrap();
    for file in ["f", "a/f", "a/b/f"] {
        fs::write(volume.join(file), "x").unwrap();
    }
    nix::unistd::mkfifo(&volume.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(outside.join("file"), "x").unwrap();
    symlink(&outside, volume.join("a/out")).unwrap();
    symlink(outside.join("file"), volume.join("file")).unwrap();
    symlink("nowhere", volume.join("dangling")).unwrap();
    assert!(relabel(&volume, LABEL).unwrap());
    for entry in ["", "a", "a/b", "f", "a/f", "a/b/f", "fifo", "a/out", "file", "dangling"] {
        assert!(is_labelled(&volume.join(entry)), "{entry}");
    }
    for entry in ["", "deep", "file"] {
        assert!(!is_labelled(&outside.join(entry)), "{entry}");
    }
    // A volume that is a link to a file.
    assert!(relabel(&volume.join("file"), LABEL).unwrap());
    assert!(is_labelled(&outside.join("file")) && !is_labelled(&outside));
}

#[test]
#[ignore = "needs root"]
fn correct_labels_are_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("file"), "x").unwrap();
    relabel(&volume, LABEL).unwrap();
    mount(Some(&volume), &volume, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    let read_only = mount(None::<&str>, &volume, None::<&str>, flags, None::<&str>);
    let (same, other) = (relabel(&volume, LABEL), relabel(&volume, "system_u:object_r:other_t:s0"));
    umount2(&volume, MntFlags::MNT_DETACH).unwrap();
    read_only.unwrap();
    assert!(same.unwrap());
    assert!(matches!(other.unwrap_err(), RelabelError::Failed { .. }));
}

#[test]
#[ignore = "needs root"]
fn mounts_in_a_volume_keep_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, host) = (dir.path().join("volume"), dir.path().join("host"));
    fs::create_dir_all(volume.join("mounted")).unwrap();
    fs::create_dir(&host).unwrap();
    fs::write(host.join("file"), "x").unwrap();
    // On the same file system, so that its device number equals that of the volume.
    mount(Some(&host), &volume.join("mounted"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let done = relabel(&volume, LABEL);
    umount2(&volume.join("mounted"), MntFlags::MNT_DETACH).unwrap();
    assert!(done.unwrap());
    assert!(is_labelled(&volume) && !is_labelled(&host) && !is_labelled(&host.join("file")));
}

#[test]
#[ignore = "needs root"]
fn a_deep_tree_needs_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let way = TreeWalk::new(OFlags::empty());
    let mut at = way.open(CWD, &volume).unwrap();
    for _ in 0..300 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        rustix::fs::mkdirat(&at, "e", Mode::RWXU).unwrap();
        at = way.open(&at, c"d").unwrap();
    }
    let tree = |levels: usize| volume.join("d/".repeat(levels));
    assert!(relabel(&volume, LABEL).unwrap());
    for levels in [0, 1, OPEN, OPEN + 1, 300] {
        assert!(is_labelled(&tree(levels)), "{levels}");
        assert!(levels == 300 || is_labelled(&tree(levels).join("e")), "{levels}");
    }
}

#[test]
#[ignore = "needs root"]
fn moving_a_directory_meanwhile_does_not_label_outside_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
    fs::create_dir_all(volume.join("d/".repeat(OPEN + 10))).unwrap();
    (0..100).for_each(|n| fs::create_dir_all(outside.join(n.to_string())).unwrap());
    let mut tree = Tree { way: TreeWalk::new(OFlags::empty()), label: LABEL };
    tree.enter(&tree.way.open(CWD, &volume).unwrap()).unwrap();
    while tree.way.depth() < OPEN + 10 {
        assert!(tree.step().unwrap());
    }
    // The parents of this directory are no longer open, and ".." now leads out of the volume.
    fs::rename(volume.join("d/".repeat(10)), outside.join("moved")).unwrap();
    let error = tree.go_on(&volume).unwrap_err();
    assert!(matches!(error, RelabelError::Moved { .. }), "{error}");
    assert!(!is_labelled(&outside) && (0..100).all(|n| !is_labelled(&outside.join(n.to_string()))));
}

#[test]
fn system_directories_are_refused_in_any_spelling() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink("/", &link).unwrap();
    for place in ["/", "/etc", "/usr/", "/usr/../usr", "//var", "/var/lib/.", "/bin", "/lib"] {
        assert!(matches!(relabel(Path::new(place), LABEL), Err(RelabelError::Forbidden(_))), "{place}");
    }
    assert!(matches!(relabel(&link, LABEL), Err(RelabelError::Forbidden(_))));
    assert!(matches!(relabel(&dir.path().join("none"), LABEL), Err(RelabelError::Failed { .. })));
}
