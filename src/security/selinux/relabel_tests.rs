use std::fs;
use std::os::unix::fs::symlink;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use safe_fs::tree_walk::OPEN;

use super::*;

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

/// A kernel without SELinux keeps the attribute like any other, for root.
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
fn all_of_a_tree_is_labelled_and_no_link_is_followed() {
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
    // A volume that is a file, and one that a link leads to.
    assert!(relabel(&volume.join("file"), LABEL).unwrap());
    assert!(is_labelled(&outside.join("file")) && !is_labelled(&outside));
}

#[test]
#[ignore = "needs root"]
fn what_is_right_already_is_not_touched() {
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
fn what_is_mounted_in_a_volume_keeps_its_labels() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, host) = (dir.path().join("volume"), dir.path().join("host"));
    fs::create_dir_all(volume.join("mounted")).unwrap();
    fs::create_dir(&host).unwrap();
    fs::write(host.join("file"), "x").unwrap();
    // Of the same file system, so that no number tells it from the volume.
    mount(Some(&host), &volume.join("mounted"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let done = relabel(&volume, LABEL);
    umount2(&volume.join("mounted"), MntFlags::MNT_DETACH).unwrap();
    assert!(done.unwrap());
    assert!(is_labelled(&volume) && !is_labelled(&host) && !is_labelled(&host.join("file")));
}

#[test]
#[ignore = "needs root"]
fn a_deep_tree_takes_few_descriptors() {
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
fn a_directory_moved_meanwhile_leads_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
    fs::create_dir_all(volume.join("d/".repeat(OPEN + 10))).unwrap();
    (0..100).for_each(|n| fs::create_dir_all(outside.join(n.to_string())).unwrap());
    let mut tree = Tree { way: TreeWalk::new(OFlags::empty()), label: LABEL };
    tree.enter(&tree.way.open(CWD, &volume).unwrap()).unwrap();
    while tree.way.depth() < OPEN + 10 {
        assert!(tree.step().unwrap());
    }
    // The way back from there is no longer open, and leads out of the volume now.
    fs::rename(volume.join("d/".repeat(10)), outside.join("moved")).unwrap();
    let error = tree.go_on(&volume).unwrap_err();
    assert!(matches!(error, RelabelError::Moved { .. }), "{error}");
    assert!(!is_labelled(&outside) && (0..100).all(|n| !is_labelled(&outside.join(n.to_string()))));
}

#[test]
fn the_hosts_own_places_are_refused_however_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink("/", &link).unwrap();
    for place in ["/", "/etc", "/usr/", "/usr/../usr", "//var", "/var/lib/.", "/bin", "/lib"] {
        assert!(matches!(relabel(Path::new(place), LABEL), Err(RelabelError::Forbidden(_))), "{place}");
    }
    assert!(matches!(relabel(&link, LABEL), Err(RelabelError::Forbidden(_))));
    assert!(matches!(relabel(&dir.path().join("none"), LABEL), Err(RelabelError::Failed { .. })));
}
