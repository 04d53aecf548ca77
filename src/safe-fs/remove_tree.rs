//! Removing a tree that a container made: however deep it is, in constant memory and with few descriptors.
//!
//! Nothing recurses. A directory that is not empty is brought up to the top of the tree before it is looked into, so no
//! path ever has more than two parts below it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;

/// Removes what is at `path` with all in it, following no link; nothing there is no failure.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let top = open(CWD, path)?;
    let mut fresh = 0;
    while empty_once(top.as_fd(), &mut fresh)? {}
    Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
}

fn open(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Removes what is in `top`, bringing up what is further below; whether there was anything.
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
        // Not all that was moved or removed meanwhile was listed: the rest has its turn next time.
        removed(top, name)?;
    }
    Ok(any)
}

fn is_itself(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Removes a file or an empty directory; false if it is a directory with something in it.
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

/// Moves a directory to `top`, under a name that nothing there has.
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

    /// `levels` directories, each in the one before, with a file in the last; made from below, since no path is so long.
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
        // A stack that has no room for a frame of each level.
        let little = std::thread::Builder::new().stack_size(64 * 1024);
        let (again, gone) =
            (tree.clone(), little.spawn(move || (remove_tree(&tree), remove_tree(&tree))).unwrap().join().unwrap());
        assert!(gone.0.is_ok() && gone.1.is_ok() && !again.exists(), "{gone:?}");
    }

    #[test]
    fn only_the_tree_goes_and_no_link_is_followed() {
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
