//! The performance budgets of crisp, and whether they are met. docs/performance.md has the same table, and a test
//! compares the two.

mod list;

use super::statistics::{Ratio, median};
use super::{Measured, Report, Summary};
use crate::args::ImageSize;

use list::BUDGETS;

/// A limit for a figure.
#[derive(Debug)]
pub(crate) struct Budget {
    what: &'static str,
    of: Metric,
    limit: Limit,
    /// Arguments of `hack/dev bench` that measure it.
    words: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Metric {
    /// crisp's value divided by containerd's, measured in turns.
    Peer(&'static str),
    /// As `Peer`: crisp with its built-in network and containerd with a CNI bridge, or both with the same plugins.
    PeerWith { figure: &'static str, same_cni: bool },
    /// As `PeerWith` without the same plugins, with the writable layers on this file system.
    PeerOn { figure: &'static str, filesystem: &'static str },
    /// As `Peer`, with an image of this size.
    PeerPull { figure: &'static str, image: ImageSize },
    /// As `Peer`, with this number of containers.
    PeerAt { figure: &'static str, containers: u32 },
    /// crisp's value with this number of containers, in its unit.
    At { figure: &'static str, containers: usize },
    /// crisp's value, with any number of containers.
    Size(&'static str),
    /// crisp's value with its built-in network, divided by that of the baseline.
    Floor(&'static str),
    /// crisp's value with many pods, divided by its value with few pods.
    Growth { figure: &'static str, few: usize, many: usize },
    /// One of crisp's values divided by another.
    Own { figure: &'static str, by: &'static str },
}

impl Metric {
    fn figure(self) -> &'static str {
        match self {
            Self::Peer(figure)
            | Self::Size(figure)
            | Self::Floor(figure)
            | Self::PeerWith { figure, .. }
            | Self::PeerOn { figure, .. }
            | Self::PeerPull { figure, .. }
            | Self::PeerAt { figure, .. }
            | Self::At { figure, .. }
            | Self::Growth { figure, .. }
            | Self::Own { figure, .. } => figure,
        }
    }

    fn is_to_peer(self) -> bool {
        match self {
            Self::Peer(_)
            | Self::PeerWith { .. }
            | Self::PeerOn { .. }
            | Self::PeerPull { .. }
            | Self::PeerAt { .. } => true,
            Self::At { .. } | Self::Size(_) | Self::Floor(_) | Self::Growth { .. } | Self::Own { .. } => false,
        }
    }

    /// Returns whether its value is a size, which hardly varies.
    fn is_size(self) -> bool {
        matches!(self, Self::At { .. } | Self::Size(_))
    }
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

use Limit::{AtLeast, AtMost};

/// The result for a budget.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    /// The figure of crisp.
    pub(crate) figure: &'static str,
    /// The runtime whose value is the divisor, if any.
    pub(crate) to: Option<String>,
    /// Text after the limit: the runtime or the unit.
    pub(crate) of: String,
    #[serde(flatten)]
    pub(crate) measured: Ratio,
    pub(crate) limit: f64,
    /// Whether `limit` is a minimum and not a maximum.
    pub(crate) at_least: bool,
    pub(crate) met: bool,
    /// Whether the whole interval is on one side of the limit.
    pub(crate) sure: bool,
    /// Baseline divided by crisp's value.
    pub(crate) floor: Option<f64>,
    /// Command that measures it again.
    pub(crate) command: String,
}

impl Verdict {
    /// Returns whether the budget is for this comparison.
    pub(crate) fn is_about(&self, figure: &str, to: &str) -> bool {
        self.figure == figure && self.to.as_deref() == Some(to)
    }

    pub(crate) fn word(&self) -> &'static str {
        match (self.met, self.sure) {
            (true, true) => "met",
            (true, false) => "met?",
            (false, false) => "missed?",
            (false, true) => "MISSED",
        }
    }
}

/// Returns the results of all budgets that were measured.
pub(crate) fn check_all(report: &Report) -> Vec<Verdict> {
    let Some((ours, others)) = report.runtimes.split_first() else { return Vec::new() };
    let peer = others.iter().find(|other| other.version.starts_with("containerd"));
    BUDGETS.iter().filter_map(|budget| verdict(report, budget, ours, peer)).collect()
}

fn verdict(report: &Report, budget: &Budget, ours: &Measured, peer: Option<&Measured>) -> Option<Verdict> {
    let settings = &report.settings;
    let to_peer = |figure| Some((report.ratio(figure, &peer?.name)?, format!("of {}", peer?.name)));
    let to = peer.map(|peer| peer.name.clone()).filter(|_| budget.of.is_to_peer());
    let (measured, of) = match budget.of {
        Metric::Peer(figure) => to_peer(figure)?,
        Metric::PeerWith { figure, same_cni } if same_cni == settings.same_cni => to_peer(figure)?,
        Metric::PeerAt { figure, containers } if containers == settings.pods * settings.containers => to_peer(figure)?,
        Metric::PeerOn { figure, filesystem } if !settings.same_cni && ours.filesystem_type() == Some(filesystem) => {
            to_peer(figure)?
        }
        Metric::PeerPull { figure, image } if settings.pull_size == Some(image) => to_peer(figure)?,
        Metric::PeerWith { .. } | Metric::PeerOn { .. } | Metric::PeerPull { .. } | Metric::PeerAt { .. } => {
            return None;
        }
        Metric::At { figure, containers } => {
            let step = ours.growth.iter().find(|step| step.containers == containers);
            let here = settings.pods as usize * settings.containers as usize == containers;
            size(step.and_then(|step| step.figure(figure)).or(ours.figure(figure).filter(|_| here))?)?
        }
        Metric::Size(figure) => {
            let steps = ours.growth.iter().find_map(|step| step.figure(figure));
            size(ours.figure(figure).or(steps)?)?
        }
        Metric::Floor(_) if settings.same_cni || settings.host_network => return None,
        Metric::Floor(figure) => {
            let floor = report.floor_of(figure)?;
            (Ratio::of(ours.values(figure), &floor.values)?, "of the baseline".to_owned())
        }
        Metric::Growth { figure, few, many } => {
            let at = |pods| ours.growth.iter().find(|step| step.pods == pods)?.figure(figure);
            (Ratio::of(&at(many)?.values, &at(few)?.values)?, "times".to_owned())
        }
        Metric::Own { figure, by } => (Ratio::of(ours.values(figure), ours.values(by))?, "times".to_owned()),
    };
    let within = |value: f64| match budget.limit {
        AtMost(limit) => value <= limit,
        AtLeast(limit) => value >= limit,
    };
    let (limit, at_least) = match budget.limit {
        AtMost(limit) => (limit, false),
        AtLeast(limit) => (limit, true),
    };
    let met = within(measured.ratio);
    // A single measurement has no interval, so it is not sure; except sizes, which hardly vary.
    let enough = budget.of.is_size() || ours.values(budget.of.figure()).len() != 1;
    let sure = enough && within(measured.low) == met && within(measured.high) == met;
    let floor = floor(report, budget, ours);
    let (what, figure) = (budget.what, budget.of.figure());
    let command = format!("hack/dev bench {}", budget.words);
    Some(Verdict { what, figure, to, of, measured, limit, at_least, met, sure, floor, command })
}

/// Returns a value without an interval, and its unit.
fn size(found: &Summary) -> Option<(Ratio, String)> {
    let value = median(&found.values)?;
    Some((Ratio { ratio: value, low: value, high: value }, found.unit.label().to_owned()))
}

fn floor(report: &Report, budget: &Budget, ours: &Measured) -> Option<f64> {
    let figure = budget.of.figure();
    if !budget.of.is_to_peer() {
        return None;
    }
    Some(report.floor_of(figure)?.p50? / median(ours.values(figure))?)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
