//! `crisp image` and its verbs.

mod local;
mod output_file;
mod remote;
pub(crate) mod table;

use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ::image::{Compress, ExportError, ImportError, OpenError, PruneError};
use config::{ConfigError, RawConfig};
use cri_api::{admin, v1};
use indicatif::HumanBytes;
use local::{IfMissing, LocalStore, is_daemons};
use output_file::OutputFile;
use remote::RemoteStore;
use table::{TableFormat, list, short};

use super::common_args::CommonArgs;
use super::progress_bar::ProgressBar;
use super::signals;
use super::signals::Interrupt;

/// What is to be done with images.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    #[command(flatten)]
    settings: CommonArgs,
    #[command(subcommand)]
    verb: ImageVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ImageVerb {
    /// Put the images of an OCI layout, OCI archive or docker archive into the store.
    ///
    /// Prints the id and the names of each. Archives may be compressed by gzip or zstd.
    Import {
        /// The archive or layout directory; - reads an archive from stdin.
        file: PathBuf,
        /// The name of the only image in the file, instead of what the file says.
        #[arg(long)]
        name: Option<String>,
        /// Show no progress.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Write images as one archive that crisp, docker, podman and containerd read.
    ///
    /// The images have the same ids wherever they are imported. One that is named by tag goes under that tag, one that is
    /// named by id under all its tags.
    Export {
        /// The file to write, which is whole or not there and for its owner alone; - is stdout.
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Compress the layers: the archive gets smaller, and takes much longer.
        #[arg(long, value_enum)]
        compress: Option<Compression>,
        /// Show no progress.
        #[arg(short, long)]
        quiet: bool,
        /// Tags or ids of images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// List the images of the store.
    Ls {
        /// Print ids only.
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        /// Print all that is known, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove images, each with all its names.
    ///
    /// What containers use stays on disk until they are removed.
    Rm {
        /// Tags or ids of images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove images that have no tag and that no container uses.
    ///
    /// Pinned images stay in any case.
    Prune {
        /// Remove images that have a tag, too.
        #[arg(short, long)]
        all: bool,
        /// Only say what would be removed.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Compression {
    Gzip,
    Zstd,
}

/// Something that could not be done with images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting")]
    Start(#[source] io::Error),
    #[error("there is no image store at {}", .0.display())]
    NoStore(PathBuf),
    #[error("opening the image store")]
    Open(#[from] OpenError),
    #[error(
        "{store}, and no daemon answers on {}: give the daemon's socket by --listen, or wait for another `crisp image`",
        socket.display()
    )]
    NoDaemon { store: String, socket: PathBuf, source: tonic::transport::Error },
    #[error("{}", .0.message())]
    Daemon(Box<tonic::Status>),
    #[error("what listens on the socket is no crisp of this release: {}", .0.message())]
    OtherDaemon(Box<tonic::Status>),
    #[error("the daemon ended before it was done: its log says why")]
    CutShort,
    #[error("{0:?} cannot be told to the daemon: it is not UTF-8")]
    Path(PathBuf),
    #[error("the archive would come from a terminal: give a file, or pipe one in")]
    FromTerminal,
    #[error("stdin is a file that is not at its beginning: give a file by its path, or pipe the rest of it in")]
    MidFile,
    #[error("the archive would go to a terminal: give a file by -o, or pipe it on")]
    ToTerminal,
    #[error("finding {}", path.display())]
    Input { path: PathBuf, source: io::Error },
    #[error("writing {}", path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error("there is no image {}", .0.join(", "))]
    NoSuchImage(Vec<String>),
    #[error("removing images")]
    Remove(#[source] ::image::DiskError),
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error("looking for containers")]
    Containers(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "containers may still run from any image ({} is there), and only a daemon knows from which: start it first",
        .0.display()
    )]
    MayRun(PathBuf),
    #[error("printing")]
    Print(#[source] io::Error),
    #[error("interrupted")]
    Interrupted,
}

impl ImageError {
    /// What the program ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => signals::EXIT_CODE,
            _ => 1,
        }
    }
}

/// Who has the store.
enum ImageStore {
    Daemon(RemoteStore),
    Offline(Box<LocalStore>),
}

impl ImageStore {
    /// A store that nobody has open is ours; else its daemon is asked.
    async fn find(config: &RawConfig, absent: IfMissing) -> Result<Self, ImageError> {
        let error = match LocalStore::open(config, absent) {
            Ok(offline) => return Ok(Self::Offline(Box::new(offline))),
            Err(ImageError::Open(error)) if is_daemons(&error) => error,
            Err(other) => return Err(other),
        };
        let asked = RemoteStore::connect(&config.listen).await;
        let store = model::error_chain::chain(&error);
        let socket = config.listen.clone();
        asked.map(Self::Daemon).map_err(|source| ImageError::NoDaemon { store, socket, source })
    }
}

/// Does it.
pub fn image(args: ImageArgs) -> Result<(), ImageError> {
    let ImageArgs { settings, verb } = args;
    let config = settings.load()?;
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    threads.map_err(ImageError::Start)?.block_on(run(verb, &config))
}

async fn run(verb: ImageVerb, config: &RawConfig) -> Result<(), ImageError> {
    // Only an import has something to put into a new store; elsewhere it would hide that the wrong one is named.
    let absent = if matches!(verb, ImageVerb::Import { .. }) { IfMissing::Make } else { IfMissing::Refuse };
    let place = ImageStore::find(config, absent).await?;
    match verb {
        ImageVerb::Import { file, name, quiet } => import(&place, &file, name.as_deref(), quiet).await,
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
            list(&images(&place).await?, form, &mut io::stdout().lock()).map_err(ImageError::Print)
        }
        ImageVerb::Rm { names } => remove(&place, &names).await,
        ImageVerb::Prune { all, dry_run } => prune(&place, all, dry_run).await,
    }
}

async fn images(place: &ImageStore) -> Result<Vec<v1::Image>, ImageError> {
    match place {
        ImageStore::Daemon(daemon) => daemon.list().await,
        ImageStore::Offline(store) => Ok(store.list()),
    }
}

async fn import(place: &ImageStore, file: &Path, name: Option<&str>, quiet: bool) -> Result<(), ImageError> {
    let path = if file == Path::new("-") {
        if io::stdin().is_terminal() {
            return Err(ImageError::FromTerminal);
        }
        let stdin = PathBuf::from(format!("/proc/{}/fd/0", std::process::id()));
        if is_mid_file(io::stdin()).map_err(|source| ImageError::Input { path: stdin.clone(), source })? {
            return Err(ImageError::MidFile);
        }
        // The daemon reads our stdin itself, and keeps what it needs of it where it may.
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
    let mut out = io::stdout().lock();
    imported?.iter().try_for_each(|image| writeln!(out, "{}", line(image))).map_err(ImageError::Print)
}

/// Whether `file` has been read from: opened anew by its path, as imports do, it would begin at its beginning.
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
    exported?;
    output.finish()
}

async fn remove(place: &ImageStore, names: &[String]) -> Result<(), ImageError> {
    let mut missing = Vec::new();
    for name in names {
        let removed = match place {
            ImageStore::Daemon(daemon) => daemon.remove(name).await?,
            ImageStore::Offline(store) => store.remove(name)?,
        };
        if !removed {
            missing.push(name.clone());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(ImageError::NoSuchImage(missing)) }
}

async fn prune(place: &ImageStore, all: bool, dry_run: bool) -> Result<(), ImageError> {
    let pruned = match place {
        ImageStore::Daemon(daemon) => daemon.prune(all, dry_run).await?,
        ImageStore::Offline(store) => store.prune(all, dry_run)?,
    };
    let admin::PruneResponse { images, bytes } = pruned;
    let mut out = io::stdout().lock();
    images.iter().try_for_each(|image| writeln!(out, "{}", line(image))).map_err(ImageError::Print)?;
    let (verb, count, size) = (if dry_run { "would free" } else { "freed" }, images.len(), HumanBytes(bytes));
    writeln!(io::stderr(), "{verb} {size} of {count} images").map_err(ImageError::Print)
}

/// An image in one line: its id, and its names.
fn line(image: &admin::Image) -> String {
    let names = if image.tags.is_empty() { short(&image.id).to_owned() } else { image.tags.join(" ") };
    format!("{} {names}", image.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_was_read_from_is_mid_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"ab").unwrap();
        assert!(is_mid_file(&file).unwrap());
        file.rewind().unwrap();
        assert!(!is_mid_file(&file).unwrap());
        assert!(!is_mid_file(io::pipe().unwrap().0).unwrap());
    }
}
