//! Removes a tree that a container created, of any depth, in constant memory and with few
//! descriptors.
//!
//! There is no recursion. A directory that is not empty is moved to the top of the tree before its
//! entries are removed, so no path has more than two components below the top.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, renameat_with, unlinkat};
use rustix::io::Errno;

/// Removes `path` with everything in it, following no link; a missing path is not an error.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let parent = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let top = open(parent.as_fd(), name)?;
    let mut fresh = 0;
    while empty_once(top.as_fd(), &mut fresh)? {}
    Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
}

/// Opens a directory, unless it is a mount point: files of another file system are not part of the tree.
fn open(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(at, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// Removes the entries of `top` and moves up deeper directories; returns whether there were any.
fn empty_once(top: BorrowedFd<'_>, fresh: &mut u64) -> io::Result<bool> {
    let mut any = false;
    for entry in Dir::read_from(top)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_itself(name) {
            continue;
        }
        any = true;
        if removed(top, name)? {
            continue;
        }
        let inside = open(top, name)?;
        for entry in Dir::read_from(&inside)? {
            let entry = entry?;
            let deeper = entry.file_name();
            if !is_itself(deeper) && !removed(inside.as_fd(), deeper)? {
                move_to_top(inside.as_fd(), deeper, top, fresh)?;
            }
        }
        // Entries that were moved or removed during the listing may be missing in it: the next
        // round handles them.
        removed(top, name)?;
    }
    Ok(any)
}

fn is_itself(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Removes a file or an empty directory; returns false if it is a directory with entries.
fn removed(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let gone = match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(directory, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match gone {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves a directory to `top`, under an unused name.
fn move_to_top(from: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>, fresh: &mut u64) -> io::Result<()> {
    loop {
        *fresh += 1;
        match renameat_with(from, name, top, format!(".{fresh}"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates `levels` nested directories, with a file in the last; built from the bottom, since
    /// no path can be so long.
    fn nested(top: &Path, levels: u32) {
        fs::create_dir_all(top.join("new")).unwrap();
        fs::write(top.join("new/file"), "x").unwrap();
        for level in 0..levels {
            fs::create_dir(top.join("above")).unwrap();
            fs::rename(top.join("new"), top.join(format!("above/{}", level % 3))).unwrap();
            fs::rename(top.join("above"), top.join("new")).unwrap();
        }
    }

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        nested(&tree, 2_000);
        // The stack is too small for one frame per level.
        let little = std::thread::Builder::new().stack_size(64 * 1024);
        let (again, gone) =
            (tree.clone(), little.spawn(move || (remove_tree(&tree), remove_tree(&tree))).unwrap().join().unwrap());
        assert!(gone.0.is_ok() && gone.1.is_ok() && !again.exists(), "{gone:?}");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_mount_in_the_tree_keeps_its_files() {
        let place = tempfile::tempdir().unwrap();
        let (tree, other) = (place.path().join("tree"), place.path().join("other"));
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("file"), "x").unwrap();
        for target in [tree.join("a/b"), tree.clone()] {
            fs::create_dir_all(&target).unwrap();
            rustix::mount::mount_bind(&other, &target).unwrap();
            let removed = remove_tree(&tree);
            rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH).unwrap();
            assert!(removed.is_err() && other.join("file").exists(), "{}", target.display());
            remove_tree(&tree).unwrap();
            assert!(!tree.exists());
        }
    }

    #[test]
    fn only_the_tree_is_removed_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (tree, other) = (place.path().join("tree"), place.path().join("other"));
        fs::create_dir_all(other.join("kept")).unwrap();
        for width in 0..20 {
            for name in [".1", ".2", "a"] {
                fs::create_dir_all(tree.join(format!("{width}/{name}/b/c"))).unwrap();
                fs::write(tree.join(format!("{width}/{name}/b/file")), "x").unwrap();
            }
        }
        symlink(&other, tree.join("link")).unwrap();
        symlink(&other, tree.join("3/a/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        assert!(other.join("kept").is_dir());
        symlink(&other, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(other.join("kept").is_dir() && tree.symlink_metadata().is_err());
    }
}
