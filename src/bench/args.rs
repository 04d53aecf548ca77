//! What is measured, of whom, and how often.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Everything below; pull only with --pull
    All,
    /// Pods with one container from beginning to end, one after another and several at once
    Life,
    /// ExecSync of `true`
    Exec,
    /// UpdateContainerResources: memory, CPU, and nothing new; with the bare files beside it
    Update,
    /// ContainerStatus and PodSandboxStatus
    Status,
    /// ListContainers and ListPodSandbox
    List,
    /// ListContainerStats and ListPodSandboxStats
    Stats,
    /// Looks at containers while very many changes are made
    Storm,
    /// update, status, list, stats and storm
    Resize,
    /// Exec output and a forwarded port through the streaming server, and what a container prints into its log
    Stream,
    /// Latency and memory with more and more pods
    Scale,
    /// An image that is pulled while absent and again while present; it is removed, again and again
    Pull,
    /// What the kernel alone needs for a pod and a container; needs no runtime
    Floor,
}

/// A runtime to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedSocket {
    pub(super) name: String,
    pub(super) socket: PathBuf,
}

impl FromStr for NamedSocket {
    type Err = Infallible;

    /// `NAME=SOCKET`, or a socket alone, whose file gives the name.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (name, socket) = match text.split_once('=') {
            Some((name, socket)) => (Some(name), socket),
            None => (None, text),
        };
        let socket = PathBuf::from(socket.trim_start_matches("unix://"));
        let stem = || socket.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.map_or_else(stem, str::to_owned);
        Ok(Self { name, socket })
    }
}

/// Measure this or any other CRI runtime.
///
/// With --compare the runtimes take turns round by round, so that all meet the same machine, and the table has their ratios
/// with intervals of 95 % confidence: on a shared machine only these mean something. A step that fails is counted and
/// shown, and the rest goes on. Pods, containers and cgroups of the benchmark are gone at its end.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// What is measured
    #[arg(value_enum, default_value = "all", value_name = "PART")]
    pub(super) parts: Vec<Part>,
    /// The runtime that this is about
    #[arg(long, default_value = "crisp=/run/crisp/crisp.sock", value_name = "[NAME=]SOCKET")]
    pub(super) socket: NamedSocket,
    /// Runtimes that it is compared with
    #[arg(long, num_args = 1.., value_name = "[NAME=]SOCKET")]
    pub(super) compare: Vec<NamedSocket>,
    /// An image with busybox that all of them have
    #[arg(long, default_value = "docker.io/library/busybox:latest")]
    pub(super) image: String,
    /// An image that all of them can pull; it is removed from them
    #[arg(long, value_name = "IMAGE")]
    pub(super) pull: Option<String>,
    /// How often each runtime has its turn; pulls and streams take fewer
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Pods that are there for exec, update, status, list, stats and storm
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pods: u32,
    /// Containers of each of them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) containers: u32,
    /// Pods under way at the same time in the parallel part of life
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) at_once: u32,
    /// Numbers of pods at which scale looks
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 100, 200])]
    pub(super) steps: Vec<u32>,
    /// Bytes through each stream, in MiB
    #[arg(long, default_value_t = 1024)]
    pub(super) stream_mib: u32,
    /// Bytes that a container prints, in MiB
    #[arg(long, default_value_t = 256)]
    pub(super) log_mib: u32,
    /// Changes that a storm brings in a second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) storm: u32,
    /// How long a storm lasts, in seconds
    #[arg(long, default_value_t = 5)]
    pub(super) storm_seconds: u64,
    /// Pods in the host's network, for runtimes without any
    #[arg(long)]
    pub(super) host_network: bool,
    /// The cgroup to make those of the benchmark in, which is removed at the end; a slice goes to the runtimes as it is, for
    /// those with the systemd driver [default: /crisp-bench-PID]
    #[arg(long, value_name = "PATH|SLICE")]
    pub(super) cgroup: Option<String>,
    /// All runtimes use the same CNI plugins: other budgets count then
    #[arg(long)]
    pub(super) same_cni: bool,
    /// Also write everything that was measured to a file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Also draw it, as one HTML page that needs no other file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl BenchArgs {
    /// The slice that all pods are put into, where there is one.
    pub(super) fn slice(&self) -> Option<&str> {
        self.cgroup.as_deref().filter(|name| name.ends_with(".slice"))
    }

    pub(super) fn runtimes(&self) -> impl Iterator<Item = &NamedSocket> {
        std::iter::once(&self.socket).chain(&self.compare)
    }

    /// Whether `part` was asked for, by name or by a word that means it.
    pub(super) fn wants(&self, part: Part) -> bool {
        self.parts.iter().any(|asked| match asked {
            Part::All => part != Part::Pull || self.pull.is_some(),
            Part::Resize => matches!(part, Part::Update | Part::Status | Part::List | Part::Stats | Part::Storm),
            asked => *asked == part,
        })
    }

    /// Whether any runtime is needed at all.
    pub(super) fn wants_runtimes(&self) -> bool {
        self.parts.iter().any(|part| *part != Part::Floor)
    }

    /// Whether pods have to be there for what was asked for.
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
    fn sockets_have_names() {
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
        let names: Vec<&str> = plan.runtimes().map(|named| named.name.as_str()).collect();
        assert_eq!(names, ["crisp", "a", "b"]);
    }

    #[test]
    fn words_mean_the_parts_they_stand_for() {
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
