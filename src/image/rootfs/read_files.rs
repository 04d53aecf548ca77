//! Reads files of an image as a container would see them, without mounts that are visible on the
//! host.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use model::LayerNumber;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::layer::confined_root::{ConfinedRoot, INSIDE, retry};
use crate::layer::whiteout::is_whiteout;

/// An image whose files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A private mount namespace or the overlay in it could not be created.
    #[error("{0}")]
    Mount(&'static str, #[source] io::Error),
    /// The thread could not be started, or panicked.
    #[error("starting the thread that reads files of an image")]
    Thread(#[source] io::Error),
    /// A file in the image could not be read.
    #[error("reading the file {0} of the image")]
    Read(&'static str, #[source] io::Error),
    /// A file in the image is larger than the limit.
    #[error("the file {0} of the image is larger than {1} bytes")]
    TooLarge(&'static str, u64),
}

impl model::ErrorClass for RootfsError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Thread(source) if source.kind() == io::ErrorKind::WouldBlock => model::ErrorKind::Exhausted,
            Self::Mount(..) | Self::Thread(_) => model::ErrorKind::Internal,
            Self::Read(..) | Self::TooLarge(..) => model::ErrorKind::Invalid,
        }
    }
}

/// Runs `work` with the merged root of an image.
///
/// `lowers` are the layers, top-most first, in `layers_dir`; `mount_point` is any directory.
pub(crate) fn show<T: Send>(
    layers_dir: &Path,
    lowers: &[LayerNumber],
    mount_point: &Path,
    work: impl FnOnce(&ConfinedRoot) -> T + Send,
) -> Result<T, RootfsError> {
    if let [only] = lowers {
        let root = ConfinedRoot::open(&layers_dir.join(only.directory()))
            .map_err(|e| RootfsError::Mount("opening the layer", e))?;
        return Ok(work(&root));
    }
    let options = format!("lowerdir={}", LayerNumber::lowerdir(lowers));
    std::thread::scope(|scope| {
        // The mount namespace and the working directory end with the thread.
        let thread = std::thread::Builder::new().name("image-view".to_owned()).spawn_scoped(scope, || {
            let root = mounted(layers_dir, mount_point, &options)?;
            Ok(work(&root))
        });
        let thread = thread.map_err(RootfsError::Thread)?;
        thread.join().map_err(|_| RootfsError::Thread(io::Error::other("the thread panicked")))?
    })
}

/// Finds `path`, following links inside the image; returns `None` if it does not exist.
pub(crate) fn find(root: &ConfinedRoot, path: &Path) -> io::Result<Option<(OwnedFd, Stat)>> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let open = || rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE);
    let found = match retry(open) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&found)?;
    // With a single layer, no overlay hides whiteouts.
    Ok(if is_whiteout(&stat) { None } else { Some((found, stat)) })
}

/// Reads small files from the merged layers of an image; files that do not exist are `None`.
///
/// `lowers` are the layers, top-most first, in `layers_dir`; `mount_point` is any directory.
pub(crate) fn read_files<const N: usize>(
    layers_dir: &Path,
    lowers: &[LayerNumber],
    mount_point: &Path,
    files: [&'static str; N],
    cap: u64,
) -> Result<[Option<Vec<u8>>; N], RootfsError> {
    show(layers_dir, lowers, mount_point, |root| read_all(root, files, cap))?
}

fn mounted(layers_dir: &Path, mount_point: &Path, options: &str) -> Result<ConfinedRoot, RootfsError> {
    let failed = |doing| move |errno: rustix::io::Errno| RootfsError::Mount(doing, errno.into());
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
        .map_err(|errno| RootfsError::Mount("leaving the host's mount namespace", errno.into()))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(failed("making mounts private"))?;
    // Relative names keep many layers within one page of mount options.
    rustix::process::chdir(layers_dir).map_err(failed("entering the layers directory"))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = std::ffi::CString::new(options).map_err(|e| RootfsError::Mount("naming the layers", e.into()))?;
    mount("overlay", mount_point, "overlay", flags, options.as_c_str()).map_err(failed("mounting the layers"))?;
    ConfinedRoot::open(mount_point).map_err(|e| RootfsError::Mount("opening the mounted layers", e))
}

fn read_all<const N: usize>(
    root: &ConfinedRoot,
    files: [&'static str; N],
    cap: u64,
) -> Result<[Option<Vec<u8>>; N], RootfsError> {
    let mut found = [const { None }; N];
    for (slot, name) in found.iter_mut().zip(files) {
        *slot = read_capped(root, name, cap)?;
    }
    Ok(found)
}

fn read_capped(root: &ConfinedRoot, name: &'static str, cap: u64) -> Result<Option<Vec<u8>>, RootfsError> {
    let found = match find(root, Path::new(name)) {
        Ok(Some(_)) => root.regular(Path::new(name)),
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => Err(error),
    };
    let file = found.map_err(|error| RootfsError::Read(name, error))?;
    let mut content = Vec::new();
    file.take(cap + 1).read_to_end(&mut content).map_err(|error| RootfsError::Read(name, error))?;
    if u64::try_from(content.len()).is_ok_and(|length| length > cap) {
        return Err(RootfsError::TooLarge(name, cap));
    }
    Ok(Some(content))
}
