//! The report of a benchmark, as written with `--json`.

mod budgets;
pub(crate) mod html;
pub(crate) mod results;
mod statistics;
pub(crate) mod table;

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};

use budgets::Verdict;
use results::{Figure, Figures, Unit};
use statistics::{Ratio, median, percentile};

use crate::args::{BenchArgs, ImageSize};
use crate::directories::{CONTAINERS, Directory};
use crate::runtime::Runtime;

/// Content of the JSON file.
#[derive(Debug, serde::Serialize)]
pub(super) struct Report {
    /// Version of this program.
    pub(super) crisp: &'static str,
    /// Seconds since 1970.
    pub(super) began: u64,
    /// The same time, as in RFC 3339.
    pub(super) date: String,
    /// The command line.
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    /// The runtime of `--socket`, then those of `--compare`.
    pub(super) runtimes: Vec<Measured>,
    /// Baseline figures, if measured.
    pub(super) floor: Vec<Summary>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) budgets: Vec<Verdict>,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Machine {
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) processors: usize,
    pub(super) cgroups: String,
}

#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Settings {
    pub(super) image: String,
    pub(super) rounds: u32,
    pub(super) pods: u32,
    pub(super) containers: u32,
    pub(super) at_once: u32,
    pub(super) stream_mib: u32,
    pub(super) log_mib: u32,
    pub(super) host_network: bool,
    pub(super) same_cni: bool,
    /// Size of the image of the part pull.
    pub(super) pull_size: Option<ImageSize>,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) socket: String,
    /// The directories that the runtime reports.
    pub(super) directories: Vec<Directory>,
    /// Whether the benchmark ran from the daemon's file. The daemon's memory is right in both cases: it includes its
    /// program in full.
    pub(super) shares_program: bool,
    /// Source of CPU times.
    pub(super) processor_time_from: &'static str,
    pub(super) errors: u32,
    pub(super) figures: Vec<Summary>,
    pub(super) growth: Vec<Growth>,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Growth {
    pub(super) pods: usize,
    pub(super) containers: usize,
    pub(super) figures: Vec<Summary>,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Summary {
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) count: usize,
    pub(super) errors: u32,
    pub(super) first_error: Option<String>,
    /// The median.
    pub(super) p50: Option<f64>,
    /// None with fewer than 10 values.
    pub(super) p90: Option<f64>,
    /// None with fewer than 100 values.
    pub(super) p99: Option<f64>,
    pub(super) values: Vec<f64>,
}

/// A figure of the first runtime divided by the same figure of another runtime.
#[derive(Debug, serde::Serialize)]
pub(super) struct Comparison {
    pub(super) figure: String,
    pub(super) to: String,
    #[serde(flatten)]
    pub(super) ratio: Ratio,
}

impl From<&Figure> for Summary {
    fn from(figure: &Figure) -> Self {
        let Figure { name, unit, values, errors, first_error } = figure;
        Self {
            name: name.clone(),
            unit: *unit,
            count: values.len(),
            errors: *errors,
            first_error: first_error.clone(),
            p50: median(values),
            p90: percentile_of(values, 90),
            p99: percentile_of(values, 99),
            values: values.clone(),
        }
    }
}

/// Returns a percentile if at least one value is expected beyond it; the largest of a few values is not one.
fn percentile_of(values: &[f64], percent: usize) -> Option<f64> {
    let enough = values.len() * (100 - percent) >= 100;
    if enough { percentile(values, percent) } else { None }
}

impl Measured {
    pub(super) fn figure(&self, name: &str) -> Option<&Summary> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    fn failed_figure(&self) -> Option<&Summary> {
        let growth = self.growth.iter().flat_map(|step| &step.figures);
        self.figures.iter().chain(growth).find(|figure| figure.errors > 0 && figure.count == 0)
    }

    pub(super) fn values(&self, name: &str) -> &[f64] {
        self.figure(name).map(|figure| figure.values.as_slice()).unwrap_or_default()
    }
}

impl Measured {
    /// Describes the file systems of the runtime's directories.
    pub(super) fn filesystems(&self) -> String {
        if self.directories.is_empty() {
            return "directories unknown".to_owned();
        }
        let each = self.directories.iter().map(|directory| format!("{} on {}", directory.of, directory.filesystem));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Returns the type of the file system with the writable layers of containers.
    pub(super) fn filesystem_type(&self) -> Option<&str> {
        let found = self.directories.iter().find(|directory| directory.of == CONTAINERS);
        found.or(self.directories.first())?.filesystem.split(' ').next()
    }
}

impl Growth {
    pub(super) fn figure(&self, name: &str) -> Option<&Summary> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

fn summaries(figures: &Figures) -> Vec<Summary> {
    figures.iter().map(Summary::from).collect()
}

impl From<&Runtime> for Measured {
    fn from(runtime: &Runtime) -> Self {
        let growth = runtime.growth.iter().map(|step| Growth {
            pods: step.pods,
            containers: step.containers,
            figures: summaries(&step.figures),
        });
        let later: u32 = runtime.growth.iter().map(|step| step.figures.errors()).sum();
        Self {
            name: runtime.name.clone(),
            version: runtime.version.clone(),
            socket: runtime.socket.display().to_string(),
            directories: runtime.directories.clone(),
            shares_program: runtime.shares_program,
            processor_time_from: runtime.family.how(),
            errors: runtime.figures.errors() + later,
            figures: summaries(&runtime.figures),
            growth: growth.collect(),
        }
    }
}

impl Report {
    pub(super) fn new(plan: &BenchArgs, began: SystemTime, runtimes: &[Runtime], floor: &Figures) -> Self {
        let mut report = Self {
            crisp: env!("CARGO_PKG_VERSION"),
            began: began.duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default(),
            date: DateTime::<Utc>::from(began).to_rfc3339_opts(SecondsFormat::Secs, true),
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "),
            machine: Machine::here(),
            settings: Settings::from(plan),
            runtimes: runtimes.iter().map(Measured::from).collect(),
            floor: summaries(floor),
            comparisons: Vec::new(),
            budgets: Vec::new(),
        };
        report.compare_and_check();
        report
    }

    /// Computes ratios and budgets from the figures.
    pub(super) fn compare_and_check(&mut self) {
        self.comparisons = compare(&self.runtimes);
        self.budgets = budgets::check_all(self);
    }

    /// Returns the names of all figures, in the order of measurement.
    pub(super) fn names(&self) -> Vec<(&str, Unit)> {
        let mut names: Vec<(&str, Unit)> = Vec::new();
        let figures = self.runtimes.iter().flat_map(|runtime| &runtime.figures);
        for figure in figures {
            if !names.iter().any(|(name, _)| *name == figure.name) {
                names.push((&figure.name, figure.unit));
            }
        }
        names
    }

    /// Returns the first figure that failed every time, with its runtime.
    pub(super) fn failed_figure(&self) -> Option<(&str, &Summary)> {
        self.runtimes.iter().find_map(|runtime| Some((runtime.name.as_str(), runtime.failed_figure()?)))
    }

    pub(super) fn ratio(&self, figure: &str, to: &str) -> Option<Ratio> {
        let found = self.comparisons.iter().find(|found| found.figure == figure && found.to == to);
        found.map(|found| found.ratio)
    }

    pub(super) fn floor_of(&self, name: &str) -> Option<&Summary> {
        self.floor.iter().find(|figure| figure.name == name)
    }
}

fn compare(runtimes: &[Measured]) -> Vec<Comparison> {
    let Some((ours, others)) = runtimes.split_first() else { return Vec::new() };
    let each = ours.figures.iter().flat_map(|figure| others.iter().map(move |other| (figure, other)));
    each.filter_map(|(figure, other)| {
        let ratio = Ratio::of(&figure.values, other.values(&figure.name))?;
        Some(Comparison { figure: figure.name.clone(), to: other.name.clone(), ratio })
    })
    .collect()
}

impl Machine {
    fn here() -> Self {
        let name = rustix::system::uname();
        let cgroups = match cgroup::Layout::detect() {
            Ok(layout) => format!("{:?}", layout.version()).to_lowercase(),
            Err(_) => "none".to_owned(),
        };
        Self {
            host: name.nodename().to_string_lossy().into_owned(),
            kernel: name.release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            cgroups,
        }
    }
}

impl From<&BenchArgs> for Settings {
    fn from(plan: &BenchArgs) -> Self {
        Self {
            image: plan.image.clone(),
            rounds: plan.rounds,
            pods: plan.pods,
            containers: plan.containers,
            at_once: plan.at_once,
            stream_mib: plan.stream_mib,
            log_mib: plan.log_mib,
            host_network: plan.host_network,
            same_cni: plan.same_cni,
            pull_size: plan.pull_size,
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
pub(super) mod tests;
