//! SELinux: under which context a container runs, and which one its files have.

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

/// As many categories as any policy has.
const CATEGORIES_MAX: u16 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum SelinuxError {
    #[error("it is switched off for this runtime handler")]
    Off,
    #[error("the pod was made without labels")]
    Unlabelled,
    #[error("the host's policy says nothing of containers: there is no lxc_contexts with a process and a file")]
    NoContexts,
    #[error(transparent)]
    Malformed(#[from] InvalidContext),
    #[error("the host's policy does not know the context {0}")]
    Unknown(String),
    #[error("asking the kernel about the context {context}")]
    Ask { context: String, source: io::Error },
    #[error("all levels are taken")]
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

/// What a pod or a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// Of its processes; none: what the policy makes of them, as for privileged containers.
    pub process: Option<String>,
    /// Of its files.
    pub mount: String,
}

impl Labels {
    /// For files that containers of several levels use.
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

/// What a container asks for, and what it is.
#[derive(Debug, Clone, Copy)]
pub struct LabelRequest<'a> {
    pub asked: Option<&'a SeLinux>,
    /// What its pod asked for.
    pub of_pod: Option<&'a SeLinux>,
    /// It is privileged, or sees the host's processes or its IPC: a type of its own would be in the way of that.
    pub free: bool,
}

/// The host's SELinux, or that it has none.
#[derive(Debug)]
pub struct Selinux {
    /// Above `sys`, `proc`, `usr` and `etc`: the root, but for tests.
    root: PathBuf,
    /// Asks the kernel for its own writing of a context.
    ask: fn(&Path, &str) -> io::Result<String>,
    levels: McsAllocator,
    warned: Once,
    ignored: Once,
}

impl Selinux {
    pub fn find() -> Self {
        Self::at(PathBuf::from("/"), ask_kernel)
    }

    fn at(root: PathBuf, ask: fn(&Path, &str) -> io::Result<String>) -> Self {
        Self { root, ask, levels: McsAllocator::default(), warned: Once::new(), ignored: Once::new() }
    }

    /// Before a policy is loaded everything is called `kernel`, and nothing is forbidden.
    pub fn is_there(&self) -> bool {
        let own = || std::fs::read_to_string(self.root.join("proc/self/attr/current")).unwrap_or_default();
        self.root.join("sys/fs/selinux/enforce").exists() && own().trim_end_matches(['\n', '\0']) != "kernel"
    }

    /// The labels of a pod, at a level of its own where it asks for none; that one is taken until [`Selinux::free`].
    ///
    /// Who asks for nothing gets the defaults, but not where the host's policy has none; that is told once.
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
            self.warned.call_once(|| tracing::warn!(%lacks, "pods that ask for no SELinux label run without"));
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
        // With everything but the level, so that a bad type is not taken for a policy without categories.
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

    /// The labels of a container: those of its pod, but for what it asks for itself. A level of its own is noted until
    /// [`Selinux::free`].
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
        // As the peers do, who ignore a type as well; but nobody names one without meaning it.
        if request.free && !names_type(request.asked) && !names_type(request.of_pod) {
            labels.process = None;
        }
        Ok(Some(labels))
    }

    /// Takes note of what an earlier daemon gave out.
    pub fn remember(&self, owner: &str, labels: Option<&Labels>) {
        let label = labels.map(|labels| labels.process.as_ref().unwrap_or(&labels.mount));
        let level = label.and_then(|label| label.parse::<Context>().ok()).and_then(|context| context.level);
        if let Some(level) = level {
            self.levels.hold(owner, &level);
        }
    }

    /// Gives back the level of something that is gone.
    pub fn free(&self, owner: &str) {
        self.levels.free(owner);
    }

    /// Of processes and of files. Where they stand is what the peers' tools and policies have agreed upon.
    fn defaults(&self) -> Result<Option<(Context, Context)>, SelinuxError> {
        let read = |path: &str| std::fs::read_to_string(self.root.join(path)).ok();
        let of_policy = || {
            let config = read("etc/selinux/config")?;
            let policy = values(&config).find(|(key, _)| *key == "SELINUXTYPE")?.1;
            // A name, not a way to elsewhere.
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

    /// How many categories the policy has: the kernel knows one after another up to the last.
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

    /// The context as the kernel writes it, if its policy knows it.
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

fn ask_kernel(root: &Path, context: &str) -> io::Result<String> {
    let mut file = File::options().read(true).write(true).open(root.join("sys/fs/selinux/context"))?;
    file.write_all(context.as_bytes())?;
    let mut answer = String::new();
    file.read_to_string(&mut answer)?;
    Ok(answer.trim_end_matches('\0').to_owned())
}

/// Lines such as `key = "value"`.
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
