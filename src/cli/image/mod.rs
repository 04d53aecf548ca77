//! `crisp image`: arguments of its subcommands, and the choice between the store and a running
//! daemon.

mod local;
mod output_file;
mod remote;
mod result;
pub(crate) mod table;

use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ::image::{Compress, ExportError, ImportError, OpenError, PruneError, RemoveError};
use config::{ConfigError, RawConfig};
use cri_api::{admin, v1};
use local::{IfMissing, LocalStore, is_daemons};
use output_file::OutputFile;
use remote::RemoteStore;
use table::{TableFormat, list};

use super::client::ConnectError;
use super::common_args::CommonArgs;
use super::progress_bar::ProgressBar;
use super::signals;
use super::signals::Interrupt;
use super::{command, output};

/// Arguments of `crisp image`.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    #[command(flatten)]
    settings: CommonArgs,
    #[command(subcommand)]
    verb: ImageVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ImageVerb {
    /// Import the images of an OCI layout, OCI archive or docker archive.
    ///
    /// Prints ID and tags of each image. Archives may be compressed with gzip or zstd.
    Import {
        /// Archive or layout directory; `-` reads an archive from stdin.
        file: PathBuf,
        /// Tag for the imported image (the archive must contain exactly one image).
        #[arg(long)]
        name: Option<String>,
        /// Do not show progress.
        #[arg(short, long)]
        quiet: bool,
        /// Print the images as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Export images as one archive, readable by crisp, docker, podman and containerd.
    ///
    /// Image IDs stay the same after an import. An image given by tag is exported with that tag; an
    /// image given by ID with all its tags.
    Export {
        /// Output file, written atomically with mode 0600; `-` for stdout.
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Compress the layers; the archive is smaller, but the export takes much longer.
        #[arg(long, value_enum)]
        compress: Option<Compression>,
        /// Do not show progress.
        #[arg(short, long)]
        quiet: bool,
        /// Tags or IDs of images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// List images.
    Ls {
        /// Print IDs only.
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        /// Print all information as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove tags, and images with their last tag; an image given by ID is removed with all its tags.
    ///
    /// Prints what was removed. Layers used by containers stay on disk until the containers are removed.
    Rm {
        /// Tags or IDs of images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Remove the images with all their tags.
        #[arg(long)]
        all_tags: bool,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove images without a tag that no container uses.
    ///
    /// Pinned images are never removed.
    Prune {
        /// Also remove unused images with a tag.
        #[arg(short, long)]
        all: bool,
        /// Only print what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Compression {
    Gzip,
    Zstd,
}

/// Why a command on images failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting the async runtime of `crisp image`")]
    Start(#[source] io::Error),
    #[error("image store {} not found; set its directory with --root", .0.display())]
    NoStore(PathBuf),
    #[error("opening the image store")]
    Open(#[from] OpenError),
    #[error("{store}; {daemon}")]
    NoDaemon { store: String, daemon: ConnectError },
    #[error("{}", .0.message())]
    Daemon(Box<tonic::Status>),
    #[error("the daemon on this socket is not this version of crisp; restart it after an upgrade: {}", .0.message())]
    OtherDaemon(Box<tonic::Status>),
    #[error("the daemon closed the connection before the image operation was complete; see the daemon's log")]
    CutShort,
    #[error("cannot send path {0:?} to the daemon: not UTF-8")]
    Path(PathBuf),
    #[error("cannot read an archive from a terminal; give a file, or pipe the archive to stdin")]
    FromTerminal,
    #[error("stdin is a file that was partly read; give the path of a file, or pipe the archive to stdin")]
    MidFile,
    #[error("cannot write an archive to a terminal; set a file with -o, or pipe stdout")]
    ToTerminal,
    #[error("opening the image archive {}", path.display())]
    Input { path: PathBuf, source: io::Error },
    #[error("writing the image archive {}", path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error("image not found: {}", .0.join(", "))]
    NoSuchImage(Vec<String>),
    #[error("removing image {name:?}")]
    Remove { name: String, source: RemoveError },
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error("listing containers in the state directory")]
    Containers(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "cannot determine which images are in use without the daemon ({} exists); start it first",
        .0.display()
    )]
    MayRun(PathBuf),
    #[error("printing the result of `crisp image`")]
    Print(#[source] io::Error),
    /// The reader of stdout needs no more: the export stops without an error.
    #[error("writing the output of `crisp image` to stdout: the reader of the pipe has exited")]
    ClosedPipe,
    #[error("crisp image was interrupted by a signal")]
    Interrupted,
}

impl ImageError {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => signals::EXIT_CODE,
            _ => 1,
        }
    }
}

/// The image store: used through a daemon, or opened by this process.
enum ImageStore {
    Daemon(RemoteStore),
    Offline(Box<LocalStore>),
}

impl ImageStore {
    /// Opens the store; if another process has it open, connects to the daemon.
    async fn find(config: &RawConfig, absent: IfMissing) -> Result<Self, ImageError> {
        let error = match LocalStore::open(config, absent) {
            Ok(offline) => return Ok(Self::Offline(Box::new(offline))),
            Err(ImageError::Open(error)) if is_daemons(&error) => error,
            Err(other) => return Err(other),
        };
        let asked = RemoteStore::connect(&config.listen).await;
        let store = model::error_chain::chain(&error);
        asked.map(Self::Daemon).map_err(|daemon| ImageError::NoDaemon { store, daemon })
    }
}

/// Runs `crisp image`.
pub fn image(args: ImageArgs) -> Result<(), ImageError> {
    let ImageArgs { settings, verb } = args;
    let config = settings.load()?;
    command::run(run(verb, &config)).map_err(ImageError::Start)?
}

async fn run(verb: ImageVerb, config: &RawConfig) -> Result<(), ImageError> {
    // Only an import creates a store: for other commands a missing store means a wrong path.
    let absent = if matches!(verb, ImageVerb::Import { .. }) { IfMissing::Make } else { IfMissing::Refuse };
    let place = ImageStore::find(config, absent).await?;
    match verb {
        ImageVerb::Import { file, name, quiet, json } => {
            let images = import(&place, &file, name.as_deref(), quiet).await?;
            result::imported(&images, json).map_err(ImageError::Print)
        }
        ImageVerb::Export { output, compress, quiet, names } => {
            let compress = match compress {
                None => Compress::No,
                Some(Compression::Gzip) => Compress::Gzip,
                Some(Compression::Zstd) => Compress::Zstd,
            };
            export(&place, output.as_deref(), compress, quiet, &names).await
        }
        ImageVerb::Ls { quiet, json } => {
            let form = match (quiet, json) {
                (_, true) => TableFormat::Json,
                (true, false) => TableFormat::Ids,
                (false, false) => TableFormat::Table,
            };
            list(&images(&place).await?, form, &mut output::stdout()).map_err(ImageError::Print)
        }
        ImageVerb::Rm { names, all_tags, json } => remove(&place, &names, all_tags, json).await,
        ImageVerb::Prune { all, dry_run, json } => prune(&place, all, dry_run, json).await,
    }
}

async fn images(place: &ImageStore) -> Result<Vec<v1::Image>, ImageError> {
    match place {
        ImageStore::Daemon(daemon) => daemon.list().await,
        ImageStore::Offline(store) => Ok(store.list()),
    }
}

async fn import(
    place: &ImageStore,
    file: &Path,
    name: Option<&str>,
    quiet: bool,
) -> Result<Vec<admin::Image>, ImageError> {
    let path = if file == Path::new("-") {
        if io::stdin().is_terminal() {
            return Err(ImageError::FromTerminal);
        }
        let stdin = PathBuf::from(format!("/proc/{}/fd/0", std::process::id()));
        if is_mid_file(io::stdin()).map_err(|source| ImageError::Input { path: stdin.clone(), source })? {
            return Err(ImageError::MidFile);
        }
        // The daemon opens our stdin through /proc and reads it itself.
        stdin
    } else {
        std::path::absolute(file).map_err(|source| ImageError::Input { path: file.to_owned(), source })?
    };
    let interrupt = Interrupt::watch().map_err(ImageError::Start)?;
    let progress_bar = ProgressBar::new("importing", quiet);
    let imported = match place {
        ImageStore::Daemon(daemon) => daemon.import(&path, name, &progress_bar, &interrupt).await,
        ImageStore::Offline(store) => {
            tokio::task::block_in_place(|| store.import(&path, name, &progress_bar, &interrupt))
        }
    };
    progress_bar.clear();
    imported
}

/// Returns whether `file` was partly read: an import opens it again by its path, and would start at offset 0.
fn is_mid_file(file: impl AsFd) -> io::Result<bool> {
    let mut file = File::from(file.as_fd().try_clone_to_owned()?);
    Ok(file.metadata()?.is_file() && file.stream_position()? != 0)
}

async fn export(
    place: &ImageStore,
    to: Option<&Path>,
    compress: Compress,
    quiet: bool,
    names: &[String],
) -> Result<(), ImageError> {
    let interrupt = Interrupt::watch().map_err(ImageError::Start)?;
    let mut output = OutputFile::open(to, interrupt.clone())?;
    let progress_bar = ProgressBar::new("exporting", quiet);
    let exported = match place {
        ImageStore::Daemon(daemon) => daemon.export(names, compress, &mut output, &progress_bar, &interrupt).await,
        ImageStore::Offline(store) => {
            tokio::task::block_in_place(|| store.export(names, compress, &mut output, &progress_bar, &interrupt))
        }
    };
    progress_bar.clear();
    match exported.and_then(|()| output.finish()) {
        Err(ImageError::ClosedPipe) => Ok(()),
        other => other,
    }
}

async fn remove(place: &ImageStore, names: &[String], all_tags: bool, json: bool) -> Result<(), ImageError> {
    let (mut removed, mut missing) = (Vec::new(), Vec::new());
    let mut failed = Ok(());
    for name in names {
        let outcome = match place {
            ImageStore::Daemon(daemon) => daemon.remove(name, all_tags).await,
            ImageStore::Offline(store) => store.remove(name, all_tags),
        };
        match outcome {
            Ok(Some(one)) => removed.push(one),
            Ok(None) => missing.push(name.clone()),
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    result::removed(&removed, json).map_err(ImageError::Print)?;
    failed?;
    if missing.is_empty() { Ok(()) } else { Err(ImageError::NoSuchImage(missing)) }
}

async fn prune(place: &ImageStore, all: bool, dry_run: bool, json: bool) -> Result<(), ImageError> {
    let pruned = match place {
        ImageStore::Daemon(daemon) => daemon.prune(all, dry_run).await?,
        ImageStore::Offline(store) => store.prune(all, dry_run)?,
    };
    result::pruned(&pruned, dry_run, json).map_err(ImageError::Print)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_a_partly_read_file_is_mid_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"ab").unwrap();
        assert!(is_mid_file(&file).unwrap());
        file.rewind().unwrap();
        assert!(!is_mid_file(&file).unwrap());
        assert!(!is_mid_file(io::pipe().unwrap().0).unwrap());
    }
}
