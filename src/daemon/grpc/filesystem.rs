//! The file system of writable layers.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use image::Usage;

/// Returns the file system below `writables`: the images' own entry if they share it, as the
/// kubelet expects.
pub(super) fn of_containers(images: &Usage, writables: &Path) -> io::Result<Usage> {
    if device(&images.path)? == device(writables)? {
        return Ok(images.clone());
    }
    // The used space of the whole file system: adding up the files of every container would take
    // minutes.
    let whole = rustix::fs::statvfs(writables)?;
    Ok(Usage {
        path: writables.to_owned(),
        bytes: whole.f_blocks.saturating_sub(whole.f_bfree).saturating_mul(whole.f_frsize),
        inodes: whole.f_files.saturating_sub(whole.f_ffree),
    })
}

fn device(path: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(path)?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_filesystem_is_told_as_one_and_two_as_two() {
        let dir = tempfile::tempdir().unwrap();
        let images = Usage { path: dir.path().to_owned(), bytes: 5, inodes: 6 };
        let writables = dir.path().join("containers");
        std::fs::create_dir(&writables).unwrap();
        assert_eq!(of_containers(&images, &writables).unwrap(), images);
        let other = of_containers(&images, Path::new("/proc")).unwrap();
        assert_eq!(other.path, Path::new("/proc"));
        assert!(of_containers(&images, &dir.path().join("none")).is_err());
    }
}
