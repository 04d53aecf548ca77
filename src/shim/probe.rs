//! Tests whether this host can run pods with user namespaces.
//!
//! `crisp-shim probe DIRECTORY STATE` does what such a pod needs, exits with 0 if all of it works,
//! and otherwise prints the failed step. DIRECTORY is an empty directory on the file system of the
//! image layers, STATE the state directory.

use std::ffi::CString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use launcher::namespaces::create_user_ns;
use launcher::rootfs::lowerdirs;
use launcher::{StepError, step};
use model::{IdMapping, UserNs};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, fsconfig_create, fsmount, fsopen,
    mount, mount_change,
};
use sys::mount::{Reach, detach_copy, map_ids};

/// The first ids that a kubelet gives to pods.
const FIRST: u32 = 65536;

const OVERLAY: &str = "mounting an overlay of layers with mapped ids";

pub(crate) fn main(mut arguments: impl Iterator<Item = PathBuf>) -> ExitCode {
    let (Some(dir), Some(state)) = (arguments.next(), arguments.next()) else { return ExitCode::FAILURE };
    match probe(&dir, &state) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cannot) => {
            writeln!(io::stdout(), "{cannot}").ok();
            ExitCode::FAILURE
        }
    }
}

fn probe(dir: &Path, state: &Path) -> Result<(), StepError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(step("taking orphans"))?;
    let lines = vec![IdMapping { host: FIRST, container: 0, length: FIRST }];
    let ids = UserNs { uids: lines.clone(), gids: lines };
    let kinds = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    let created = create_user_ns::create(&ids, kinds).map_err(step("creating a user namespace"))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(step("unsharing the mount namespace"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(step("making mounts private"))?;
    let files = detach_copy(state, Reach::Top).map_err(step("opening the state directory"))?;
    map_ids(files, &created.user, Reach::Top).map_err(step("mapping ids in the state directory"))?;
    show_layers(dir, created.user.as_fd())?;
    mount_inside(created.user.as_fd())
}

/// Mounts an overlay whose lower layers have mapped ids.
fn show_layers(dir: &Path, ids: BorrowedFd<'_>) -> Result<(), StepError> {
    let making = || step("creating directories");
    for name in ["lower", "upper", "work", "layers", "shown"] {
        std::fs::create_dir(dir.join(name)).map_err(making())?;
    }
    std::fs::write(dir.join("lower/file"), "").map_err(making())?;
    let (spare, shown) = (dir.join("layers"), dir.join("shown"));
    let entered = lowerdirs::enter(dir, Some(ids), &spare).map_err(step("mapping ids in the root directory"))?;
    let options = format!("lowerdir=lower,upperdir={0}/upper,workdir={0}/work", dir.display());
    let options = CString::new(options).map_err(step("naming the layers"))?;
    mount("overlay", &shown, "overlay", MountFlags::empty(), Some(options.as_c_str())).map_err(step(OVERLAY))?;
    entered.leave().map_err(step("leaving the layers"))?;
    let owner = std::fs::metadata(shown.join("file")).map_err(step(OVERLAY))?.uid();
    if owner == FIRST { Ok(()) } else { Err(step(OVERLAY)(io::Error::other(format!("root's file is {owner}'s")))) }
}

/// Mounts the file systems that every container mounts. The kernel refuses if a mount covers parts
/// of the host's own.
fn mount_inside(user: BorrowedFd<'_>) -> Result<(), StepError> {
    let (mut reader, mut writer) = io::pipe().map_err(step("creating a pipe"))?;
    let enter = move || {
        setns(user, CloneFlags::CLONE_NEWUSER)?;
        create_user_ns::become_root()?;
        let own = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC;
        Ok(unshare(own | CloneFlags::CLONE_NEWNS)?)
    };
    let child = move || {
        let all = ["proc", "sysfs", "tmpfs", "mqueue", "devpts"];
        match all.into_iter().find_map(|kind| mounts(kind).err().map(|error| (kind, error))) {
            None => writer.write_all(b"\0"),
            Some((kind, error)) => writer.write_all(format!("{kind}: {error}").as_bytes()),
        }
        .is_err()
        .into()
    };
    create_user_ns::fork_in_userns(enter, child).map_err(step("entering a user namespace"))?;
    let mut message = String::new();
    reader.read_to_string(&mut message).map_err(step("reading the result of the mounts"))?;
    if message == "\0" { Ok(()) } else { Err(step("mounting in a user namespace")(io::Error::other(message))) }
}

fn mounts(kind: &str) -> rustix::io::Result<()> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map(drop)
}
