//! SELinux: selects the contexts of a container's processes and files.

mod context;
mod mcs;
pub(crate) mod relabel;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Once;

use context::{Context, InvalidContext};
use mcs::McsAllocator;
use model::{ErrorClass, ErrorKind, SeLinux};
use serde::{Deserialize, Serialize};

/// The largest number of categories in any policy.
const CATEGORIES_MAX: u16 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum SelinuxError {
    #[error("SELinux is off for this runtime handler (container.selinux), so labels cannot be requested")]
    Off,
    #[error("the pod was created without SELinux labels, so its containers cannot have labels")]
    Unlabelled,
    #[error("the host's SELinux policy has no contexts for containers: lxc_contexts with process and file not found")]
    NoContexts,
    #[error(transparent)]
    Malformed(#[from] InvalidContext),
    #[error("unknown SELinux context {0}: not in the host's policy")]
    Unknown(String),
    #[error("checking SELinux context {context}")]
    Ask { context: String, source: io::Error },
    #[error("no SELinux level is free for a new pod: remove pods")]
    NoLevel,
}

impl ErrorClass for SelinuxError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Off | Self::Unlabelled | Self::NoContexts | Self::Unknown(_) => ErrorKind::Precondition,
            Self::NoLevel => ErrorKind::Exhausted,
            Self::Malformed(_) | Self::Ask { .. } => ErrorKind::Internal,
        }
    }
}

/// The labels of a pod or container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// The context of its processes; `None`: the policy decides, as for privileged containers.
    pub process: Option<String>,
    /// The context of its files.
    pub mount: String,
}

impl Labels {
    /// Returns the context of files that containers of several levels use.
    pub fn shared(&self) -> String {
        match self.mount.parse::<Context>() {
            Ok(mut context) => {
                context.level = context.sensitivity().map(str::to_owned);
                context.to_string()
            }
            Err(_) => self.mount.clone(),
        }
    }
}

/// The SELinux options of a container's request.
#[derive(Debug, Clone, Copy)]
pub struct LabelRequest<'a> {
    pub asked: Option<&'a SeLinux>,
    /// The options of its pod.
    pub of_pod: Option<&'a SeLinux>,
    /// The container is privileged, or in the host's PID or IPC namespace, so the container type would
    /// deny too much.
    pub free: bool,
}

/// The host's SELinux, which may be absent.
#[derive(Debug)]
pub struct Selinux {
    /// The parent of `sys`, `proc`, `usr` and `etc`: `/` except in tests.
    root: PathBuf,
    /// Returns the canonical form of a context from the kernel.
    ask: fn(&Path, &str) -> io::Result<String>,
    levels: McsAllocator,
    warned: Once,
    ignored: Once,
}

impl Selinux {
    pub fn find() -> Self {
        Self::at(PathBuf::from("/"), canonicalize)
    }

    fn at(root: PathBuf, ask: fn(&Path, &str) -> io::Result<String>) -> Self {
        Self { root, ask, levels: McsAllocator::default(), warned: Once::new(), ignored: Once::new() }
    }

    /// Returns whether SELinux is enabled. Without a loaded policy every context is `kernel`, and
    /// nothing is denied.
    pub fn is_there(&self) -> bool {
        let own = || std::fs::read_to_string(self.root.join("proc/self/attr/current")).unwrap_or_default();
        self.root.join("sys/fs/selinux/enforce").exists() && own().trim_end_matches(['\n', '\0']) != "kernel"
    }

    /// Returns the labels of a pod. Without a requested level it allocates one until [`Selinux::free`].
    ///
    /// A pod without options gets the defaults. If the host's policy has none, it gets no labels, and
    /// a warning is logged once.
    pub fn of_pod(&self, id: &str, asked: Option<&SeLinux>, on: bool) -> Result<Option<Labels>, SelinuxError> {
        if !self.is_there() {
            self.ignore(asked);
            return Ok(None);
        }
        let lacks = match on {
            true => match self.defaults()? {
                Some(defaults) => return self.label_pod(id, asked, defaults).map(Some),
                None => SelinuxError::NoContexts,
            },
            false => SelinuxError::Off,
        };
        if asked.is_some() {
            return Err(lacks);
        }
        if matches!(lacks, SelinuxError::NoContexts) {
            self.warned.call_once(|| tracing::warn!(%lacks, "cannot label pods for SELinux: pods without SELinux options run without labels"));
        }
        Ok(None)
    }

    /// SELinux options on a host without SELinux have no effect, as with containerd and CRI-O: charts set them for all
    /// hosts. The first ones are logged.
    fn ignore(&self, asked: Option<&SeLinux>) {
        if asked.is_some() {
            self.ignored.call_once(|| tracing::warn!("this host has no SELinux: selinux_options of pods are ignored"));
        }
    }

    fn label_pod(
        &self,
        id: &str,
        asked: Option<&SeLinux>,
        (mut process, mut files): (Context, Context),
    ) -> Result<Labels, SelinuxError> {
        if let Some(asked) = asked {
            (process, files) = (process.of_process(asked), files.of_files(asked));
        }
        // Checked without the new level first, so that a bad type is not reported as a lack of categories.
        self.check(&process)?;
        let own = asked.is_some_and(|asked| !asked.level.is_empty());
        if let (false, Some(sensitivity)) = (own, process.sensitivity()) {
            let chance = u32::from_ne_bytes(random());
            let level = self.levels.take(id, sensitivity, self.categories(&process)?, chance);
            process.level = Some(level.ok_or(SelinuxError::NoLevel)?);
        }
        let process = self.check(&process)?;
        files.level.clone_from(&process.level);
        let mount = self.check(&files)?.to_string();
        if let Some(level) = &process.level {
            self.levels.hold(id, level);
        }
        Ok(Labels { process: Some(process.to_string()), mount })
    }

    /// Returns the labels of a container: those of its pod with its own options. A requested level is
    /// recorded until [`Selinux::free`].
    pub fn of_container(
        &self,
        id: &str,
        pod: Option<&Labels>,
        request: LabelRequest<'_>,
    ) -> Result<Option<Labels>, SelinuxError> {
        let Some(pod) = pod else {
            return match request.asked {
                Some(_) if self.is_there() => Err(SelinuxError::Unlabelled),
                asked => {
                    self.ignore(asked);
                    Ok(None)
                }
            };
        };
        let names_type = |asked: Option<&SeLinux>| asked.is_some_and(|asked| !asked.kind.is_empty());
        let mut labels = pod.clone();
        if let (Some(asked), Some(process)) = (request.asked, &pod.process) {
            let process = self.check(&process.parse::<Context>()?.of_process(asked))?;
            labels.mount = self.check(&pod.mount.parse::<Context>()?.of_files(asked))?.to_string();
            if let Some(level) = &process.level {
                self.levels.hold(id, level);
            }
            labels.process = Some(process.to_string());
        }
        // As in containerd and CRI-O, except that these ignore a requested type too.
        if request.free && !names_type(request.asked) && !names_type(request.of_pod) {
            labels.process = None;
        }
        Ok(Some(labels))
    }

    /// Records the level that an earlier daemon allocated.
    pub fn remember(&self, owner: &str, labels: Option<&Labels>) {
        let label = labels.map(|labels| labels.process.as_ref().unwrap_or(&labels.mount));
        let level = label.and_then(|label| label.parse::<Context>().ok()).and_then(|context| context.level);
        if let Some(level) = level {
            self.levels.hold(owner, &level);
        }
    }

    /// Frees the level of a removed pod or container.
    pub fn free(&self, owner: &str) {
        self.levels.free(owner);
    }

    /// Returns the default contexts of processes and of files. The paths are those that containerd,
    /// CRI-O and the policies use.
    fn defaults(&self) -> Result<Option<(Context, Context)>, SelinuxError> {
        let read = |path: &str| std::fs::read_to_string(self.root.join(path)).ok();
        let of_policy = || {
            let config = read("etc/selinux/config")?;
            let policy = values(&config).find(|(key, _)| *key == "SELINUXTYPE")?.1;
            // A plain name that cannot leave the directory.
            let plain = !policy.is_empty() && !policy.starts_with('.') && !policy.contains('/');
            if plain { read(&format!("etc/selinux/{policy}/contexts/lxc_contexts")) } else { None }
        };
        let text = read("usr/share/containers/selinux/contexts").or_else(of_policy).unwrap_or_default();
        let value = |wanted: &str| values(&text).find(|(key, _)| *key == wanted).map(|(_, value)| value);
        match (value("process"), value("file")) {
            (Some(process), Some(file)) => Ok(Some((process.parse()?, file.parse()?))),
            _ => Ok(None),
        }
    }

    /// Returns the number of categories in the policy by binary search, since their numbers are
    /// consecutive.
    fn categories(&self, of: &Context) -> Result<u16, SelinuxError> {
        let sensitivity = of.sensitivity().unwrap_or("s0");
        let (mut known, mut unknown) = (0, CATEGORIES_MAX + 1);
        while known + 1 < unknown {
            let middle = known.midpoint(unknown);
            let last = Context { level: Some(format!("{sensitivity}:c{}", middle - 1)), ..of.clone() };
            match self.check(&last) {
                Ok(_) => known = middle,
                Err(SelinuxError::Unknown(_)) => unknown = middle,
                Err(other) => return Err(other),
            }
        }
        Ok(known)
    }

    /// Returns the kernel's canonical form of the context, or an error if the policy does not have it.
    pub fn check(&self, context: &Context) -> Result<Context, SelinuxError> {
        let text = context.to_string();
        match (self.ask)(&self.root, &text) {
            Ok(canonical) => Ok(canonical.parse()?),
            Err(unknown) if unknown.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Err(SelinuxError::Unknown(text))
            }
            Err(source) => Err(SelinuxError::Ask { context: text, source }),
        }
    }
}

fn canonicalize(root: &Path, context: &str) -> io::Result<String> {
    let mut file = File::options().read(true).write(true).open(root.join("sys/fs/selinux/context"))?;
    file.write_all(context.as_bytes())?;
    let mut answer = String::new();
    file.read_to_string(&mut answer)?;
    Ok(answer.trim_end_matches('\0').to_owned())
}

/// Parses lines such as `key = "value"`.
fn values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
}

fn random() -> [u8; 4] {
    let mut bytes = [0; 4];
    // The kernel's generator does not fail once the system has booted.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(4) {}
    bytes
}

#[cfg(test)]
mod tests;
