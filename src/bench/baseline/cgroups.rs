//! Creates and removes cgroups of a pod below open directories, with one system call per step.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgroup::{Cgroup, CgroupFs as _};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, unlinkat};
use rustix::io::{Errno, write};

use crate::raw_cgroup_writes::patch;

/// Time limit for cgroups to become empty after the exit of their last process.
const EMPTY_WITHIN: Duration = Duration::from_secs(1);

/// The benchmark's cgroup in one hierarchy, and what each pod needs in it.
#[derive(Debug)]
struct Hierarchy {
    top: OwnedFd,
    /// File and content for the cgroup of a pod and of its container.
    of_both: Vec<(String, String)>,
    /// Only for the cgroup of a pod: on v2, the controllers for its container.
    of_pod: Vec<(String, String)>,
    /// Only for the cgroup of a container: its limits.
    of_container: Vec<(String, String)>,
}

#[derive(Debug)]
pub(super) struct Cgroups(Vec<Hierarchy>);

impl Cgroups {
    /// Reads from an example in `group` what the kernel needs, and removes the example.
    pub(super) fn learn(group: &Cgroup) -> io::Result<Self> {
        let example = group.child("example").map_err(io::Error::other)?;
        let container = example.child("main").map_err(io::Error::other)?;
        drop(container.create().map_err(io::Error::other)?);
        let change = cgroup::prepare(&container, &patch(200, 64)?).map_err(io::Error::other)?;
        let limits: Vec<(PathBuf, String)> =
            change.writes.iter().map(|write| (container.location(&write.knob), write.want.text().to_owned())).collect();
        let each = group.join_files().into_iter().zip(example.join_files()).zip(container.join_files());
        let hierarchies = each.map(|((top, pod), container)| Hierarchy::learn(&top, &pod, &container, &limits));
        let learned = Self(hierarchies.collect::<io::Result<_>>()?);
        example.remove().map_err(io::Error::other)?;
        Ok(learned)
    }

    /// Creates the cgroups of a pod and of its container, with limits.
    pub(super) fn create(&self, pod: &str) -> io::Result<()> {
        let container = format!("{pod}/main");
        let mode = Mode::from_raw_mode(0o755);
        for hierarchy in &self.0 {
            mkdirat(&hierarchy.top, pod, mode)?;
            hierarchy.write(pod, &hierarchy.of_both)?;
            hierarchy.write(pod, &hierarchy.of_pod)?;
            mkdirat(&hierarchy.top, &container, mode)?;
            hierarchy.write(&container, &hierarchy.of_both)?;
            hierarchy.write(&container, &hierarchy.of_container)?;
        }
        Ok(())
    }

    /// Moves this process into the container's cgroups.
    pub(super) fn join(&self, pod: &str) -> io::Result<()> {
        let own = [("cgroup.procs".to_owned(), "0".to_owned())];
        self.0.iter().try_for_each(|hierarchy| hierarchy.write(&format!("{pod}/main"), &own))
    }

    pub(super) fn remove(&self, pod: &str) -> io::Result<()> {
        let begin = Instant::now();
        for hierarchy in &self.0 {
            for path in [format!("{pod}/main"), pod.to_owned()] {
                while let Err(error) = unlinkat(&hierarchy.top, &path, AtFlags::REMOVEDIR) {
                    if error != Errno::BUSY || begin.elapsed() > EMPTY_WITHIN {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Hierarchy {
    fn learn(top: &Path, pod: &Path, container: &Path, limits: &[(PathBuf, String)]) -> io::Result<Self> {
        let directory = |file: &Path| file.parent().map(Path::to_owned).unwrap_or_default();
        let [top, pod, container] = [top, pod, container].map(directory);
        let read = |name: &str| std::fs::read_to_string(pod.join(name)).map(|text| text.trim().to_owned());
        // On v1, a cgroup of the cpuset hierarchy accepts no process before it has these.
        let cpuset = ["cpuset.cpus", "cpuset.mems"].map(|name| Some((name.to_owned(), read(name).ok()?)));
        let controllers = read("cgroup.subtree_control").unwrap_or_default();
        let wanted: Vec<String> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
        // The cgroups below inherit the two files instead: each write makes the kernel compute its scheduling domains.
        let inherited = std::fs::write(top.join("cgroup.clone_children"), "1").is_ok();
        let here = limits.iter().filter(|(path, _)| path.parent() == Some(&container));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            top: open(&top, flags, Mode::empty())?,
            of_both: cpuset.into_iter().flatten().filter(|(_, text)| !inherited && !text.is_empty()).collect(),
            of_pod: match wanted[..] {
                [] => Vec::new(),
                _ => vec![("cgroup.subtree_control".to_owned(), wanted.join(" "))],
            },
            of_container: here
                .map(|(path, text)| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text.clone()))
                .collect(),
        })
    }

    fn write(&self, directory: &str, files: &[(String, String)]) -> io::Result<()> {
        for (name, text) in files {
            let path = format!("{directory}/{name}");
            let failed = |error: Errno| io::Error::other(format!("{path}: {}", io::Error::from(error)));
            let file = openat(&self.top, &path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
            write(&file, text.as_bytes()).map_err(failed)?;
        }
        Ok(())
    }
}
