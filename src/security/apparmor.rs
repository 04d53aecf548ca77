//! AppArmor: selects a container's profile and loads crisp's own.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, Profile};
use sync::Mutex;

/// The name of crisp's own profile.
const OURS: &str = "crisp-default";
const TEXT: &str = include_str!("../../runtime-config/crisp-default.apparmor");
/// The line with the profiles from which containers accept signals.
const PEERS: &str = "@{CRISP}=unconfined";

#[derive(Debug, thiserror::Error)]
pub enum ApparmorError {
    #[error("this host has no AppArmor: the requested profile cannot be used")]
    Absent,
    #[error("AppArmor profile {0:?} is not loaded: load it with apparmor_parser")]
    NotLoaded(String),
    #[error("listing the loaded AppArmor profiles: reading {}", path.display())]
    Loaded { path: PathBuf, source: io::Error },
    #[error("the default AppArmor profile is not loaded, and apparmor_parser to load it is not in PATH")]
    NoParser,
    #[error("loading the default AppArmor profile: starting {}", parser.display())]
    Start { parser: PathBuf, source: io::Error },
    #[error("loading the default AppArmor profile: apparmor_parser failed: {0}")]
    Parser(String),
}

impl ErrorClass for ApparmorError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent => ErrorKind::Unsupported,
            Self::NotLoaded(_) | Self::NoParser => ErrorKind::Precondition,
            Self::Loaded { .. } | Self::Start { .. } | Self::Parser(_) => ErrorKind::Internal,
        }
    }
}

/// The host's AppArmor, which may be absent.
#[derive(Debug)]
pub struct Apparmor {
    /// The parent of `sys`, `proc` and `etc`: `/` except in tests.
    root: PathBuf,
    parser: Option<PathBuf>,
    /// Whether this daemon has loaded its own profile.
    loaded: Mutex<bool>,
    warned: Once,
}

impl Apparmor {
    pub fn find() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let parser = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(usual);
        let parser = parser.map(|dir| dir.join("apparmor_parser")).find(|file| file.is_file());
        Self::at(PathBuf::from("/"), parser)
    }

    fn at(root: PathBuf, parser: Option<PathBuf>) -> Self {
        Self { root, parser, loaded: Mutex::new(false), warned: Once::new() }
    }

    pub fn is_there(&self) -> bool {
        let enabled = self.root.join("sys/module/apparmor/parameters/enabled");
        std::fs::read(enabled).is_ok_and(|text| text.starts_with(b"Y"))
    }

    /// Returns whether crisp's own profile can be loaded.
    pub fn has_parser(&self) -> bool {
        self.parser.is_some()
    }

    /// Returns the profile of a container. `default` is the handler's replacement of crisp's own.
    ///
    /// A container without a requested profile gets the default too, as in containerd and CRI-O. If the
    /// host cannot load it, the container runs without, and a warning is logged once.
    pub fn profile(
        &self,
        asked: Option<&Profile>,
        privileged: bool,
        default: Option<&str>,
    ) -> Result<Option<String>, ApparmorError> {
        match asked {
            Some(Profile::Unconfined) => Ok(None),
            Some(Profile::Localhost(_)) if !self.is_there() => Err(ApparmorError::Absent),
            // A requested profile applies to privileged containers too.
            Some(Profile::Localhost(name)) => self.loaded(name).map(Some),
            // Without AppArmor the default is skipped, as in containerd and CRI-O.
            None | Some(Profile::RuntimeDefault) if privileged || !self.is_there() => Ok(None),
            Some(Profile::RuntimeDefault) => self.default_one(default).map(Some),
            None => match self.default_one(default) {
                Err(lacks @ (ApparmorError::NoParser | ApparmorError::Loaded { .. })) => {
                    self.warned.call_once(|| {
                        tracing::warn!(
                            error = chain(&lacks),
                            "no default AppArmor profile; containers that request none run unconfined"
                        );
                    });
                    Ok(None)
                }
                other => other.map(Some),
            },
        }
    }

    fn default_one(&self, configured: Option<&str>) -> Result<String, ApparmorError> {
        match configured {
            Some(name) => self.loaded(name),
            None => self.ours(),
        }
    }

    /// Loads crisp's own profile once per daemon, so that it has the text of this release.
    fn ours(&self) -> Result<String, ApparmorError> {
        let mut loaded = self.loaded.lock();
        match &self.parser {
            Some(parser) if !*loaded => self.load(parser)?,
            None if !self.is_loaded(OURS)? => return Err(ApparmorError::NoParser),
            Some(_) | None => {}
        }
        *loaded = true;
        // It may have been unloaded since.
        if !self.is_loaded(OURS)? {
            *loaded = false;
            return Err(ApparmorError::NotLoaded(OURS.to_owned()));
        }
        Ok(OURS.to_owned())
    }

    fn loaded(&self, name: &str) -> Result<String, ApparmorError> {
        if self.is_loaded(name)? { Ok(name.to_owned()) } else { Err(ApparmorError::NotLoaded(name.to_owned())) }
    }

    /// Returns whether the kernel's list has `name`, in a line such as `NAME (enforce)`.
    fn is_loaded(&self, name: &str) -> Result<bool, ApparmorError> {
        let path = self.root.join("sys/kernel/security/apparmor/profiles");
        let list = std::fs::read_to_string(&path).map_err(|source| ApparmorError::Loaded { path, source })?;
        Ok(list.lines().any(|line| line.rsplit_once(" (").is_some_and(|(known, _)| known == name)))
    }

    fn load(&self, parser: &Path) -> Result<(), ApparmorError> {
        let failed = |source| ApparmorError::Start { parser: parser.to_owned(), source };
        let mut command = Command::new(parser);
        command.args(["--skip-cache", "--replace"]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let given = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(self.text().as_bytes()));
        let done = child.wait_with_output().map_err(failed)?;
        if !done.status.success() || given.is_err() {
            let stderr = String::from_utf8_lossy(&done.stderr);
            return Err(ApparmorError::Parser(stderr.trim().chars().take(1000).collect()));
        }
        tracing::info!(profile = OURS, "loaded the default AppArmor profile");
        Ok(())
    }

    /// Returns the profile's text for this host: with its ABI version, and with the profile of this daemon.
    fn text(&self) -> String {
        let mut text = String::new();
        if self.root.join("etc/apparmor.d/abi/3.0").exists() {
            text.push_str("abi <abi/3.0>,\n");
        }
        let current = |file: &str| std::fs::read_to_string(self.root.join("proc/self/attr").join(file)).ok();
        let own = current("apparmor/current").or_else(|| current("current")).unwrap_or_default();
        match own.trim_end().rsplit_once(" (") {
            Some((name, _)) => text.push_str(&TEXT.replace(PEERS, &format!("{PEERS} \"{name}\""))),
            None => text.push_str(TEXT),
        }
        text
    }
}

#[cfg(test)]
#[path = "apparmor_tests.rs"]
mod tests;
