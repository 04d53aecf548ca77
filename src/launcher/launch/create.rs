//! The steps of a launch, in their order.
//!
//! ```text
//! on the host          read the configuration, prepare mounts, open cgroups
//! own mount namespace  leave the mounts of other pods, mount the root file system
//! libcontainer         namespaces, /proc, /sys, /dev, pivot_root; then the stages of `executor` in the first process
//! on the host          add the first process to its cgroups, set its OOM score
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use model::LayerNumber;
use model::error_chain::chain;
use nix::sched::CloneFlags;
use oci_spec::runtime::{Mount, Process, Spec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::CapabilitySet;
use shim_protocol::{CreateRequest, LaunchConfig, LaunchWarning, LaunchWarningKind, Overlay};
use sys::fork::SingleThread;

use super::cgroup_join::CgroupFds;
use super::hook_gate::{self, HookGate};
use super::join_user_ns::UserNsLaunch;
use super::libcontainer_executor::{CrispExecutor, HookPlan, LaunchStages, StageSettings, StartHooks};
use super::libcontainer_spec::{SpecError, for_libcontainer, own_mounts};
use super::minimal_mounts::pivot_to_minimal_mounts;
use super::report::trace;
use super::shared_pid_ns::{self, SharedPidNs};
use super::shared_stage::SharedStage;
use super::{ContainerStdio, LaunchChannels, LaunchError, client_paths, read, set_oom_score};
use crate::process::execve::{clamped_limits, raise_limits};
use crate::process::lsm_label::ProcFs;
use crate::process::seccomp_filter::SeccompFilter;
use crate::process::{capabilities, lsm_label};
use crate::rootfs::idmap::IdMaps;
use crate::rootfs::image_mount::ImageMounts;
use crate::rootfs::mounts::{MountSources, PreparedMount};
use crate::rootfs::{device_nodes, locked_mounts, lowerdirs};
use crate::step;

/// A launch in progress.
struct Launcher<'a> {
    request: &'a CreateRequest,
    spec: Spec,
    config: &'a LaunchConfig,
    process: Process,
    userns: Option<UserNsLaunch>,
    ids: IdMaps,
    mounts: Vec<Mount>,
    label: Option<String>,
    rootfs: PathBuf,
    /// The directory that libcontainer gets as its bundle.
    bundle: PathBuf,
    /// libcontainer waits for hooks before it enters the root.
    gated: bool,
    warnings: Vec<LaunchWarning>,
    shared: Option<SharedPidNs>,
}

/// A container's first process, which waits for its start.
#[derive(Debug)]
pub(super) struct CreatedProcess {
    pub(super) pid: u32,
    /// The settings that the host could not apply.
    pub(super) warnings: Vec<LaunchWarning>,
    /// It waits at [`LaunchChannels::go`], not at libcontainer's socket.
    pub(super) waits: bool,
}

/// Creates a container up to its first process, which waits for its start.
pub(super) fn run(
    request: &CreateRequest,
    config: &LaunchConfig,
    stdio: ContainerStdio,
    pod_proc: Option<BorrowedFd<'_>>,
) -> Result<CreatedProcess, LaunchError> {
    let mut launcher = Launcher::new(request, config, pod_proc)?;
    client_paths::prepare(launcher.config, &stdio.channels.report)?;
    let filter = launcher.read_filter()?;
    launcher.chown_stdio(&stdio).map_err(step("giving the standard streams to the user"))?;
    let mut prepared = launcher.prepare_mounts()?;
    let tracer = trace::ToShim(stdio.channels.report.try_clone().map_err(step("copying a descriptor"))?);
    drop(tracing::subscriber::set_global_default(tracer));
    let cgroup_fds = launcher.make_directories()?;
    launcher.enter_mount_namespace(&cgroup_fds)?;
    launcher.mount_rootfs(&mut prepared)?;
    launcher.write_bundle()?;
    let stages = launcher.stages(prepared, filter, stdio.channels)?;
    if launcher.gated {
        launcher.spawn_gatekeeper(&stages)?;
    }
    let mut container = launcher.build([stdio.stdin, stdio.stdout, stdio.stderr], Rc::clone(&stages))?;
    let first = container.pid().ok_or(LaunchError::Lacks("first process"))?.as_raw();
    let mut pid = to_number(first)?;
    cgroup_fds.add(pid).map_err(step("joining the cgroups"))?;
    launcher.set_oom_score(pid);
    let waits = launcher.shared.is_some();
    if waits {
        pid = to_number(enter_shared_pid_ns(&mut container, first, &stages)?)?;
    }
    Ok(CreatedProcess { pid, warnings: launcher.warnings, waits })
}

fn to_number(pid: i32) -> Result<u32, LaunchError> {
    u32::try_from(pid).map_err(|_| LaunchError::Lacks("first process"))
}

/// Makes the process that libcontainer created fork the container's first process in the shared PID
/// namespace.
fn enter_shared_pid_ns(container: &mut Container, outside: i32, stages: &LaunchStages) -> Result<i32, LaunchError> {
    let forking = "forking in the shared PID namespace";
    let outside = Pid::from_raw(outside).ok_or(LaunchError::Lacks("first process"))?;
    let outside = pidfd_open(outside, PidfdFlags::empty()).map_err(step(forking))?;
    container.start().map_err(|e| LaunchError::Libcontainer(e.to_string()))?;
    // It is a child of the shim, which reaps it.
    let mut ended = [PollFd::new(&outside, PollFlags::IN)];
    while poll(&mut ended, None).is_err_and(|errno| errno == rustix::io::Errno::INTR) {}
    let forked = stages.forked().map(nix::unistd::Pid::as_raw);
    Ok(forked.ok_or_else(|| io::Error::other("the process that should fork exited")).map_err(step(forking))?)
}

impl<'a> Launcher<'a> {
    /// Reads the OCI configuration from the container's directory.
    fn new(
        request: &'a CreateRequest,
        config: &'a LaunchConfig,
        pod_proc: Option<BorrowedFd<'_>>,
    ) -> Result<Self, LaunchError> {
        let dir = &request.dir;
        let mut spec: Spec = read(dir, "config.json")?;
        let shim = nix::unistd::getppid().as_raw();
        let shared = SharedPidNs::take(&mut spec, shim, pod_proc).map_err(step("opening the shared PID namespace"))?;
        let process = spec.process().clone().ok_or(LaunchError::Lacks("process"))?;
        let userns = UserNsLaunch::of(&spec).map_err(step("opening the pod's namespaces"))?;
        let ids = match &userns {
            Some(UserNsLaunch { ids, user, .. }) => {
                IdMaps::of_container(ids.clone(), user.try_clone().map_err(step("copying a descriptor"))?)
            }
            None => IdMaps::default(),
        };
        Ok(Self {
            request,
            warnings: clamped_limits(&process),
            mounts: own_mounts(&spec),
            label: spec.linux().as_ref().and_then(|linux| linux.mount_label().clone()),
            rootfs: dir.join("rootfs"),
            bundle: dir.join("libcontainer"),
            gated: hook_gate::is_needed(&spec),
            spec,
            config,
            process,
            userns,
            ids,
            shared,
        })
    }

    fn read_filter(&self) -> Result<Option<Vec<u8>>, LaunchError> {
        let filter = self.config.seccomp.as_ref().map(std::fs::read).transpose();
        filter.map_err(|source| LaunchError::Read { file: "the seccomp filter", source })
    }

    /// Opens the sources of the mounts, on the host.
    fn prepare_mounts(&mut self) -> Result<Vec<PreparedMount>, LaunchError> {
        let mut sources = MountSources {
            cgroup: &self.config.cgroup,
            label: self.label.as_deref(),
            ids: &mut self.ids,
            warnings: &mut self.warnings,
        };
        Ok(sources.prepare(&self.mounts)?)
    }

    fn make_directories(&self) -> Result<CgroupFds, LaunchError> {
        std::fs::create_dir_all(&self.rootfs).map_err(step("creating the root directory"))?;
        std::fs::create_dir_all(&self.bundle).map_err(step("creating the bundle"))?;
        Ok(CgroupFds::open(&self.config.cgroup).map_err(step("opening the cgroups"))?)
    }

    /// Leaves the host's mount namespace, and the mounts that the launch does not need.
    fn enter_mount_namespace(&self, cgroup_fds: &CgroupFds) -> Result<(), LaunchError> {
        unshare_mounts()?;
        // Hooks that run on the host may need all mounts.
        if !self.gated {
            let unified = cgroup_fds.unified(&self.spec);
            let pivoted = needed_paths(&self.request.dir, &self.spec, self.config)
                .and_then(|paths| pivot_to_minimal_mounts(&paths, unified.as_deref(), &self.bundle));
            if let Err(error) = pivoted {
                crate::log(format_args!("launching among all mounts of the host: {error}"));
            }
        }
        Ok(())
    }

    /// Mounts the layers, and prepares the mounts that need this mount namespace.
    fn mount_rootfs(&mut self, prepared: &mut Vec<PreparedMount>) -> Result<(), LaunchError> {
        let (label, rootfs) = (self.label.as_deref(), &self.rootfs);
        if let Some(userns) = &self.userns {
            raise_limits(&self.process);
            let devices = self.spec.linux().as_ref().and_then(|linux| linux.devices().as_deref()).unwrap_or_default();
            prepared.splice(0..0, device_nodes::prepare(devices, &userns.ids, label, rootfs)?);
        }
        let mut images = ImageMounts { launch: self.config, label, spare: rootfs, ids: &mut self.ids };
        prepared.extend(images.prepare(&self.mounts)?);
        if let Some(userns) = &self.userns {
            locked_mounts::lock(prepared, userns.user.as_fd(), rootfs).map_err(step("locking the mounts"))?;
        }
        let user = self.userns.as_ref().map(|userns| userns.user.as_fd());
        mount_overlay(&self.config.rootfs, label, rootfs, user, &self.bundle)?;
        if let Some(shared) = &self.shared {
            shared.attach_proc(&self.request.dir).map_err(step("mounting the proc file system"))?;
        }
        refuse_links(rootfs)
    }

    /// Writes the configuration that libcontainer gets.
    fn write_bundle(&self) -> Result<(), LaunchError> {
        let held = if self.userns.is_some() { CapabilitySet::all() } else { capabilities::held() };
        let mut slim = for_libcontainer(&self.spec, self.rootfs.clone(), capabilities::names(held))?;
        if self.gated {
            slim.set_hooks(Some(hook_gate::hooks().map_err(SpecError::from)?));
        }
        if let Some(userns) = &self.userns {
            let dir = &self.request.dir;
            userns
                .make_reachable(dir, self.gated, self.shared.is_some())
                .map_err(step("letting the user namespace find the root"))?;
            userns.adapt(&mut slim, dir).map_err(SpecError::from)?;
        }
        if self.shared.is_some() {
            shared_pid_ns::adapt(&mut slim, &self.request.dir).map_err(SpecError::from)?;
        }
        slim.save(self.bundle.join("config.json")).map_err(|e| LaunchError::Libcontainer(e.to_string()))
    }

    /// Returns the code that runs in the container's first process.
    fn stages(
        &self,
        prepared: Vec<PreparedMount>,
        filter: Option<Vec<u8>>,
        channels: LaunchChannels,
    ) -> Result<Rc<LaunchStages>, LaunchError> {
        let LaunchChannels { report, started, go } = channels;
        let hooks = HookPlan { gated: self.gated, start: start_hooks(self.request, &self.spec)? };
        let shared = self.shared.as_ref().map(|shared| SharedStage::new(&shared.namespace, go)).transpose();
        let calls = if self.shared.is_some() { SharedStage::calls(self.config.tty) } else { &[][..] };
        let filter = SeccompFilter::prepare(filter.as_deref(), calls).map_err(step("reading the seccomp filter"))?;
        let settings = StageSettings {
            process: self.process.clone(),
            filter,
            tty: self.config.tty,
            hooks,
            shared: shared.map_err(step("preparing to fork in the shared PID namespace"))?,
            proc: if self.shared.is_some() {
                ProcFs::of_host().map_err(step("opening /proc"))?
            } else {
                ProcFs::Mounted
            },
        };
        Ok(LaunchStages::new(prepared, &self.spec, settings, report, started))
    }

    fn spawn_gatekeeper(&self, stages: &Rc<LaunchStages>) -> Result<(), LaunchError> {
        let gate = HookGate {
            id: self.request.container.to_string(),
            bundle: self.request.dir.clone(),
            rootfs: self.rootfs.clone(),
            spec: self.spec.clone(),
            stages: Rc::clone(stages),
        };
        Ok(hook_gate::spawn_gatekeeper(gate).map_err(step("starting the process that runs the hooks"))?)
    }

    fn set_oom_score(&mut self, pid: u32) {
        let requested = self.config.oom_score_adj;
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/oom_score_adj"));
        if let Err(error) = file.and_then(|file| set_oom_score(file, requested.unwrap_or(0)))
            && let Some(score) = requested
        {
            let message = format!("oom_score_adj {score} could not be set: {error}");
            self.warnings.push(LaunchWarningKind::OomScoreAdj.warning(message));
        }
    }

    /// Calls libcontainer.
    fn build(&self, stdio: [OwnedFd; 3], stages: Rc<LaunchStages>) -> Result<Container, LaunchError> {
        let failed = |e: libcontainer::error::LibcontainerError| LaunchError::Libcontainer(chain(&e));
        let [stdin, stdout, stderr] = stdio;
        ContainerBuilder::new(self.request.container.to_string(), SyscallType::default())
            .with_executor(CrispExecutor(stages))
            .with_root_path(&self.bundle)
            .map_err(failed)?
            .with_stdin(stdin)
            .with_stdout(stdout)
            .with_stderr(stderr)
            .as_init(&self.bundle)
            .with_systemd(false)
            .with_detach(true)
            .as_sibling(true)
            .build()
            .map_err(failed)
    }

    /// Gives the streams to the container's user: otherwise a program of another user than root
    /// cannot reopen /dev/stdout.
    fn chown_stdio(&self, stdio: &ContainerStdio) -> io::Result<()> {
        let process = &self.process;
        let (uid, gid) = (process.user().uid(), process.user().gid());
        let (uid, gid) = match &self.userns {
            None => (Some(uid), Some(gid)),
            Some(userns) => (userns.ids.uid(uid), userns.ids.gid(gid)),
        };
        for end in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
            if rustix::fs::fstat(end).is_ok_and(|s| s.st_rdev == 0) {
                rustix::fs::fchown(end, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
            }
        }
        Ok(())
    }
}

/// Leaves the host's mount namespace: later mounts exist in this process and its children only.
fn unshare_mounts() -> Result<(), LaunchError> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(step("unsharing the mount namespace"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private).map_err(step("making mounts private"))?)
}

/// Returns all host paths that the launch needs from here on, without those in `/proc` and `/sys`,
/// which always exist.
fn needed_paths(dir: &Path, spec: &Spec, launch: &LaunchConfig) -> io::Result<Vec<PathBuf>> {
    let Overlay { layers, lower: _, upper, work } = &launch.rootfs;
    let spaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref()).unwrap_or_default();
    let spaces = spaces.iter().filter_map(|space| space.path().as_deref());
    let all = [dir, layers, upper, work].into_iter().chain(spaces);
    all.filter(|path| !path.starts_with("/proc") && !path.starts_with("/sys")).map(std::fs::canonicalize).collect()
}

/// Returns the hooks that the container's first process runs itself.
fn start_hooks(request: &CreateRequest, spec: &Spec) -> Result<Option<StartHooks>, LaunchError> {
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().clone()).unwrap_or_default();
    if hooks.is_empty() {
        return Ok(None);
    }
    Ok(Some(StartHooks {
        alone: SingleThread::check().map_err(step("counting threads"))?,
        hooks,
        id: request.container.to_string(),
        bundle: request.dir.clone(),
        version: spec.version().clone(),
        annotations: spec.annotations().clone().unwrap_or_default(),
    }))
}

/// Mounts the layers. With the user namespace `ids`, their files have its ids; new files get the
/// ids that the container's ids have on the host. `spare` is an empty directory, which is mounted
/// over temporarily.
fn mount_overlay(
    overlay: &Overlay,
    label: Option<&str>,
    onto: &Path,
    ids: Option<BorrowedFd<'_>>,
    spare: &Path,
) -> Result<(), LaunchError> {
    let entered = lowerdirs::enter(&overlay.layers, ids, spare).map_err(step("entering the layers"))?;
    let lower = LayerNumber::lowerdir(&overlay.lower);
    let (upper, work, label) = (overlay.upper.display(), overlay.work.display(), lsm_label::mount_data(label));
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work}{label}");
    let data = std::ffi::CString::new(data).map_err(|e| step("mounting the layers")(io::Error::other(e)))?;
    mount("overlay", onto, "overlay", MountFlags::empty(), Some(data.as_c_str()))
        .map_err(step("mounting the layers"))?;
    Ok(entered.leave().map_err(step("leaving the layers"))?)
}

/// Refuses an image with a link at these places. libcontainer mounts and creates device nodes there
/// from outside of the root, so a link would lead it to the host's directories.
fn refuse_links(rootfs: &Path) -> Result<(), LaunchError> {
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(rootfs, root, Mode::empty()).map_err(step("opening the root"))?;
    for place in ["proc", "sys", "dev"] {
        match rustix::fs::statat(&root, place, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                return Err(LaunchError::NotADirectory(place));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(step("reading the root directory")(errno).into()),
        }
    }
    Ok(())
}
