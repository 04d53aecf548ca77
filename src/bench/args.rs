//! The command-line arguments of `crisp bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use model::{ENDPOINT_VARIABLE, InvalidSocket, socket_path};

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// All parts below; pull only with --pull
    All,
    /// Latency of creating and removing pods with one container, one at a time and several in parallel
    Life,
    /// Latency of ExecSync with the command `true`
    Exec,
    /// Latency of UpdateContainerResources: memory, CPU, no change; compared with plain writes to the cgroup files
    Update,
    /// Latency of ContainerStatus and PodSandboxStatus
    Status,
    /// Latency of ListContainers and ListPodSandbox
    List,
    /// Latency of ListContainerStats and ListPodSandboxStats
    Stats,
    /// Latency of status calls during a storm of updates
    Storm,
    /// The parts update, status, list, stats and storm
    Resize,
    /// Throughput of exec output, of a forwarded port and of the container log
    Stream,
    /// Latency and memory with a growing number of pods
    Scale,
    /// Pull an image that is absent, and again while present; the image is removed repeatedly
    Pull,
    /// Time of the same kernel operations without a runtime
    Floor,
}

const DEFAULT_SOCKET: &str = "crisp=/run/crisp/crisp.sock";

/// Name and socket of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedSocket {
    pub(super) name: String,
    pub(super) socket: PathBuf,
}

impl FromStr for NamedSocket {
    type Err = InvalidSocket;

    /// Parses `NAME=SOCKET`, or a socket whose file name gives the name.
    fn from_str(text: &str) -> Result<Self, InvalidSocket> {
        let (name, socket) = match text.split_once('=') {
            Some((name, socket)) => (Some(name), socket),
            None => (None, text),
        };
        let socket = socket_path(socket)?;
        let stem = || socket.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.map_or_else(stem, str::to_owned);
        Ok(Self { name, socket })
    }
}

/// Size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct ImageSize {
    pub(super) layers: u32,
    pub(super) mib: u32,
}

/// An image size that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a number of layers, an `x` and a number of MiB, such as 20x500")]
pub(super) struct InvalidImageSize(String);

impl FromStr for ImageSize {
    type Err = InvalidImageSize;

    fn from_str(text: &str) -> Result<Self, InvalidImageSize> {
        let parsed = || {
            let (layers, mib) = text.split_once('x')?;
            Some(Self { layers: layers.parse().ok()?, mib: mib.parse().ok()? })
        };
        parsed().ok_or_else(|| InvalidImageSize(text.to_owned()))
    }
}

/// Benchmark crisp or another CRI runtime.
///
/// With --compare, the runtimes take turns in every round, so that all run under the same
/// conditions, and the table shows their ratios with 95 % confidence intervals. On a shared machine
/// only the ratios are meaningful. Failed steps are counted and shown; the benchmark continues.
/// Pods, containers and cgroups of the benchmark are removed at the end.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// Parts of the benchmark to run
    #[arg(value_enum, default_value = "all", value_name = "PART")]
    pub(super) parts: Vec<Part>,
    /// Runtime to benchmark; a socket is a path or unix:///PATH [env: CONTAINER_RUNTIME_ENDPOINT]
    /// [default: crisp=/run/crisp/crisp.sock]
    #[arg(long, value_name = "[NAME=]SOCKET")]
    socket: Option<NamedSocket>,
    /// Sockets of other runtimes to compare with the one of --socket
    #[arg(long, num_args = 1.., value_name = "[NAME=]SOCKET")]
    pub(super) compare: Vec<NamedSocket>,
    /// Image with busybox, present in all runtimes
    #[arg(long, default_value = "docker.io/library/busybox:latest")]
    pub(super) image: String,
    /// Image for the part pull, which all runtimes can pull; removed from them
    #[arg(long, value_name = "IMAGE")]
    pub(super) pull: Option<String>,
    /// Size of the image of --pull, unpacked, so that the report applies the limits for this size
    #[arg(long, value_name = "LAYERSxMIB")]
    pub(super) pull_size: Option<ImageSize>,
    /// Measurements per runtime; fewer for pull and stream
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Number of running pods, for the parts exec, update, status, list, stats and storm
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pods: u32,
    /// Containers in each running pod of --pods
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) containers: u32,
    /// Number of pods created in parallel, for the part life
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) at_once: u32,
    /// Numbers of running pods to measure with, for the part scale
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 100, 200, 300, 400])]
    pub(super) steps: Vec<u32>,
    /// MiB to transfer per stream, for the part stream
    #[arg(long, default_value_t = 1024)]
    pub(super) stream_mib: u32,
    /// MiB that a container writes to its log, for the part stream
    #[arg(long, default_value_t = 256)]
    pub(super) log_mib: u32,
    /// Updates per second, for the part storm
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) storm: u32,
    /// Duration of the part storm in seconds
    #[arg(long, default_value_t = 5)]
    pub(super) storm_seconds: u64,
    /// Use the host's network for pods, for runtimes without a network
    #[arg(long)]
    pub(super) host_network: bool,
    /// Parent cgroup of the benchmark, removed at the end; a slice is passed to the runtimes
    /// unchanged, for the systemd driver [default: /crisp-bench-PID]
    #[arg(long, value_name = "PATH|SLICE")]
    pub(super) cgroup: Option<String>,
    /// State that all runtimes use the same CNI plugins, so that the report applies the limits for this case
    #[arg(long)]
    pub(super) same_cni: bool,
    /// Also write all results to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Also write the results with plots to a self-contained HTML file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl BenchArgs {
    /// Returns the slice for all pods, if `--cgroup` is a slice.
    pub(super) fn slice(&self) -> Option<&str> {
        self.cgroup.as_deref().filter(|name| name.ends_with(".slice"))
    }

    /// Returns the runtime of `--socket`, of the environment or the default one, and those of `--compare`.
    pub(super) fn runtimes(&self) -> Result<Vec<NamedSocket>, InvalidSocket> {
        let of_environment = || std::env::var(ENDPOINT_VARIABLE).ok().filter(|text| !text.is_empty());
        let first = match &self.socket {
            Some(named) => named.clone(),
            None => of_environment().unwrap_or_else(|| DEFAULT_SOCKET.to_owned()).parse()?,
        };
        Ok(std::iter::once(first).chain(self.compare.iter().cloned()).collect())
    }

    /// Returns whether `part` was requested, by its name or as a part of `all` or `resize`.
    pub(super) fn wants(&self, part: Part) -> bool {
        self.parts.iter().any(|asked| match asked {
            Part::All => part != Part::Pull || self.pull.is_some(),
            Part::Resize => matches!(part, Part::Update | Part::Status | Part::List | Part::Stats | Part::Storm),
            asked => *asked == part,
        })
    }

    /// Returns whether any requested part needs a runtime.
    pub(super) fn wants_runtimes(&self) -> bool {
        self.parts.iter().any(|part| *part != Part::Floor)
    }

    /// Returns whether any requested part needs running pods.
    pub(super) fn wants_background_pods(&self) -> bool {
        [Part::Exec, Part::Update, Part::Status, Part::List, Part::Stats, Part::Storm]
            .into_iter()
            .any(|part| self.wants(part))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        plan: BenchArgs,
    }

    fn parse(words: &str) -> BenchArgs {
        Cli::try_parse_from(["bench"].into_iter().chain(words.split_whitespace())).unwrap().plan
    }

    #[test]
    fn sockets_are_parsed_with_and_without_a_name() {
        let named = |text: &str| {
            let NamedSocket { name, socket } = text.parse().unwrap();
            (name, socket.to_str().unwrap().to_owned())
        };
        assert_eq!(
            named("/run/containerd/containerd.sock"),
            ("containerd".into(), "/run/containerd/containerd.sock".into())
        );
        assert_eq!(named("crio=unix:///run/crio.sock"), ("crio".into(), "/run/crio.sock".into()));
        let plan = parse("life exec --compare a=/a /b.sock --rounds 3");
        let names: Vec<String> = plan.runtimes().unwrap().into_iter().map(|named| named.name).collect();
        assert_eq!(names[1..], ["a", "b"]);
        assert!("a=tcp://127.0.0.1:1".parse::<NamedSocket>().is_err());
    }

    #[test]
    fn an_image_size_is_layers_and_mib() {
        assert_eq!(parse("pull --pull-size 20x500").pull_size, Some(ImageSize { layers: 20, mib: 500 }));
        for wrong in ["20", "x5", "5x", "20x500MiB", "-1x2"] {
            let error = wrong.parse::<ImageSize>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{wrong}` is not a number of layers")), "{error}");
        }
    }

    #[test]
    fn all_and_resize_select_several_parts() {
        let all = parse("");
        assert!(
            all.wants(Part::Life) && all.wants(Part::Floor) && !all.wants(Part::Pull) && all.wants_background_pods()
        );
        assert!(parse("all --pull x").wants(Part::Pull));
        let resize = parse("resize");
        assert!(resize.wants(Part::Storm) && resize.wants(Part::Stats) && !resize.wants(Part::Exec));
        assert!(!parse("floor").wants_runtimes() && !parse("life stream").wants_background_pods());
    }
}
