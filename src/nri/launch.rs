//! Pre-installed plugins: programs `NN-name` of a directory, which crisp starts.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::identity::{Identity, InvalidIdentity};

/// The pause before the first restart; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// A plugin that ran this long begins with the first pause again.
const STABLE: Duration = Duration::from_secs(60);
/// Bytes of a configuration file: it is sent in one message, together with other fields.
const CONFIG_MAX: u64 = 2 << 20;
/// Entries of the directory of plugins.
const PLUGINS_MAX: usize = 1024;
/// The first bytes of a WebAssembly module.
const WASM: [u8; 4] = *b"\0asm";

/// A program of the directory of plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub identity: Identity,
}

/// A file that is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("plugin {}: {source}", path.display())]
    Name { path: PathBuf, source: InvalidIdentity },
    #[error("plugin {}: WebAssembly plugins are not supported", .0.display())]
    Wasm(PathBuf),
    #[error("plugin directory {}: more than {PLUGINS_MAX} entries", .0.display())]
    TooMany(PathBuf),
    #[error("{}: {size} bytes, at most {CONFIG_MAX}", path.display())]
    ConfigSize { path: PathBuf, size: u64 },
    #[error("{}: expected a regular file", .0.display())]
    NoFile(PathBuf),
    #[error("{}: expected UTF-8", .0.display())]
    NoText(PathBuf),
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Io { doing, path: path.to_owned(), source }
}

/// Finds the plugins of a directory in their order, and the files that are not started. A missing
/// directory has none; files that are not executable are not plugins.
#[must_use]
pub fn discover(directory: &Path) -> (Vec<Program>, Vec<LaunchError>) {
    let (mut programs, mut refused) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return (programs, refused),
        Err(error) => return (programs, vec![failed("reading", directory)(error)]),
    };
    for (position, entry) in entries.enumerate() {
        if position >= PLUGINS_MAX {
            refused.push(LaunchError::TooMany(directory.to_owned()));
            break;
        }
        let found = entry.map_err(failed("reading", directory)).and_then(|entry| program(entry.path()));
        match found {
            Ok(program) => programs.extend(program),
            Err(error) => refused.push(error),
        }
    }
    programs.sort_by(|a, b| a.identity.cmp(&b.identity));
    (programs, refused)
}

fn program(path: PathBuf) -> Result<Option<Program>, LaunchError> {
    let meta = fs::metadata(&path).map_err(failed("reading the status of", &path))?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let identity = match name.parse::<Identity>() {
        Ok(identity) => identity,
        Err(source) => return Err(LaunchError::Name { path, source }),
    };
    let mut magic = [0; 4];
    let read = open(&path)?.read_exact(&mut magic);
    if read.is_ok() && magic == WASM {
        return Err(LaunchError::Wasm(path));
    }
    Ok(Some(Program { path, identity }))
}

/// Opens a file; never waits, as for the other end of a FIFO.
fn open(path: &Path) -> Result<File, LaunchError> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    File::options().read(true).custom_flags(flags).open(path).map_err(failed("opening", path))
}

/// Reads the configuration of a plugin: `NN-name.conf`, else `name.conf`, else nothing.
pub fn config(directory: &Path, identity: &Identity) -> Result<String, LaunchError> {
    for name in [format!("{identity}.conf"), format!("{}.conf", identity.name())] {
        let path = directory.join(name);
        let file = match open(&path) {
            Err(LaunchError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let meta = file.metadata().map_err(failed("reading the status of", &path))?;
        if !meta.is_file() {
            return Err(LaunchError::NoFile(path));
        }
        if meta.len() > CONFIG_MAX {
            return Err(LaunchError::ConfigSize { path, size: meta.len() });
        }
        let mut bytes = Vec::new();
        file.take(CONFIG_MAX).read_to_end(&mut bytes).map_err(failed("reading", &path))?;
        return String::from_utf8(bytes).map_err(|_| LaunchError::NoText(path));
    }
    Ok(String::new())
}

/// A started plugin; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) socket: UnixStream,
}

/// Starts a plugin with one end of a connection as descriptor 3.
pub(crate) fn start(program: &Program) -> Result<Started, LaunchError> {
    let path = &program.path;
    let (socket, end) = std::os::unix::net::UnixStream::pair().map_err(failed("creating a socket for", path))?;
    socket.set_nonblocking(true).map_err(failed("creating a socket for", path))?;
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("NRI_PLUGIN_NAME", program.identity.name())
        .env("NRI_PLUGIN_IDX", program.identity.index())
        .env("NRI_PLUGIN_SOCKET", "3")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to the terminal of the daemon is not for the plugin.
        .process_group(0)
        .kill_on_drop(true);
    sys::pass_fd::pass_fd(command.as_std_mut(), end.into(), 3).map_err(failed("creating a socket for", path))?;
    let child = command.spawn().map_err(failed("starting", path))?;
    let socket = UnixStream::from_std(socket).map_err(failed("creating a socket for", path))?;
    Ok(Started { child, socket })
}

/// The pauses between restarts of one plugin.
#[derive(Debug, Default)]
pub(crate) struct BackOff(u32);

impl BackOff {
    /// Returns the pause after a run of this length.
    pub(crate) fn pause(&mut self, ran: Duration) -> Duration {
        if ran >= STABLE {
            self.0 = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.0)).min(LAST_PAUSE);
        self.0 = self.0.saturating_add(1);
        pause
    }
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
