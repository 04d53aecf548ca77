//! The requested change of a container or pod: command-line options, or `NAME=KEY:VALUE,…`.

use std::str::FromStr;

use model::pod_resources::{QualifiedName, Resources};
use model::resources::{CpuPeriod, CpuQuota, CpuSet, CpuShares, InvalidLimits, LimitsPatch};

use super::quantity_arg;
use super::quantity_arg::{InvalidQuantityArg, Limit, QuantityArg};

/// The argument of `--memory`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemoryArg {
    /// `?`
    Forecast,
    Quantity(QuantityArg),
}

impl FromStr for MemoryArg {
    type Err = InvalidQuantityArg;

    fn from_str(text: &str) -> Result<Self, InvalidQuantityArg> {
        if text == "?" { Ok(Self::Forecast) } else { text.parse().map(Self::Quantity) }
    }
}

/// Changes of one container; every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(super) struct Change {
    /// CPUs: 500m, 250m/500m, 250m/ (request only), /500m (limit only) or /max (no limit).
    #[arg(long, value_name = "[REQUEST/]LIMIT")]
    cpu: Option<QuantityArg>,
    /// Memory in the same form, such as 256Mi; the request is only recorded, no kernel setting corresponds to it.
    /// With ?, print the smallest limit that would be accepted now, and change nothing.
    #[arg(long, value_name = "[REQUEST/]LIMIT")]
    memory: Option<MemoryArg>,
    /// Limit of memory plus swap: an amount, or max.
    #[arg(long, value_name = "LIMIT")]
    memory_swap: Option<Limit>,
    /// CPU time per period in microseconds, instead of a limit in --cpu; -1 removes the limit.
    #[arg(long, value_name = "MICROSECONDS", allow_negative_numbers = true)]
    cpu_quota: Option<i64>,
    /// Length of the period of --cpu-quota in microseconds.
    #[arg(long, value_name = "MICROSECONDS")]
    cpu_period: Option<i64>,
    /// CPU weight, 2 to 262144, instead of a request in --cpu; 1024 corresponds to one CPU.
    #[arg(long, value_name = "SHARES")]
    cpu_shares: Option<i64>,
    /// CPUs that the container may use, such as 0-1,3.
    #[arg(long, value_name = "LIST")]
    cpuset_cpus: Option<String>,
    /// Memory nodes (NUMA) that the container may use, such as 0-1.
    #[arg(long, value_name = "LIST")]
    cpuset_mems: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("invalid change {0:?}: expected NAME=KEY:VALUE,… such as app=cpu:500m,memory:256Mi")]
    Form(String),
    #[error(
        "unknown key {key:?} in NAME=KEY:VALUE of `crisp resize`: expected cpu, memory, memory-swap, cpu-quota, cpu-period, cpu-shares, cpuset-cpus or cpuset-mems"
    )]
    Key { key: String },
    #[error("{key} is given twice for a container, as in web=cpu:1,cpu:2: remove one")]
    Twice { key: String },
    #[error("invalid value {value:?} of {key} for `crisp resize`: {problem}")]
    Value { key: String, value: String, problem: String },
    #[error("`memory ?` is a question, not a change: use --memory '?' without other options")]
    Forecast,
    #[error("cpu and {0} cannot be combined in a resize of one container: remove one of them")]
    Both(&'static str),
    #[error(transparent)]
    Amount(#[from] InvalidQuantityArg),
    #[error(transparent)]
    Limits(#[from] InvalidLimits),
}

/// A change of the container with this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) change: Change,
}

impl FromStr for Named {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let form = || ChangeError::Form(text.to_owned());
        let (name, rest) =
            text.split_once('=').filter(|(name, rest)| !name.is_empty() && !rest.is_empty()).ok_or_else(form)?;
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in rest.split(',') {
            match (part.split_once(':'), pairs.last_mut()) {
                (Some((key, value)), _) => pairs.push((key.to_owned(), value.to_owned())),
                // A list of CPUs may contain commas.
                (None, Some((_, value))) => *value = format!("{value},{part}"),
                (None, None) => return Err(form()),
            }
        }
        let mut change = Change::default();
        pairs.iter().try_for_each(|(key, value)| change.set(key, value))?;
        Ok(Self { name: name.to_owned(), change })
    }
}

/// Parses a value into `place`, which must be empty.
fn put<T: FromStr>(place: &mut Option<T>, key: &str, value: &str) -> Result<(), ChangeError>
where
    T::Err: std::fmt::Display,
{
    if place.is_some() {
        return Err(ChangeError::Twice { key: key.to_owned() });
    }
    let failed = |problem: T::Err| {
        let (key, value) = (key.to_owned(), value.to_owned());
        ChangeError::Value { key, value, problem: problem.to_string() }
    };
    *place = Some(value.parse().map_err(failed)?);
    Ok(())
}

impl Change {
    fn set(&mut self, key: &str, value: &str) -> Result<(), ChangeError> {
        match key {
            "cpu" => put(&mut self.cpu, key, value),
            "memory" => put(&mut self.memory, key, value),
            "memory-swap" => put(&mut self.memory_swap, key, value),
            "cpu-quota" => put(&mut self.cpu_quota, key, value),
            "cpu-period" => put(&mut self.cpu_period, key, value),
            "cpu-shares" => put(&mut self.cpu_shares, key, value),
            "cpuset-cpus" => put(&mut self.cpuset_cpus, key, value),
            "cpuset-mems" => put(&mut self.cpuset_mems, key, value),
            other => Err(ChangeError::Key { key: other.to_owned() }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn of_pod(cpu: Option<QuantityArg>, memory: Option<QuantityArg>) -> Self {
        Self { cpu, memory: memory.map(MemoryArg::Quantity), ..Self::default() }
    }

    /// Returns whether this is `--memory '?'`, which must be the only change.
    pub(super) fn is_forecast(&self) -> Result<bool, ChangeError> {
        if self.memory != Some(MemoryArg::Forecast) {
            return Ok(false);
        }
        let only = Self { memory: Some(MemoryArg::Forecast), ..Self::default() };
        if *self == only { Ok(true) } else { Err(ChangeError::Forecast) }
    }

    fn memory(&self) -> Result<Option<&QuantityArg>, ChangeError> {
        match &self.memory {
            Some(MemoryArg::Forecast) => Err(ChangeError::Forecast),
            Some(MemoryArg::Quantity(memory)) => Ok(Some(memory)),
            None => Ok(None),
        }
    }

    /// Converts the change to limits. `period` is the current CPU period.
    pub(super) fn patch(&self, period: CpuPeriod) -> Result<LimitsPatch, ChangeError> {
        let memory = self.memory()?;
        let Self { cpu, memory: _, memory_swap, cpu_quota, cpu_period, cpu_shares, cpuset_cpus, cpuset_mems } = self;
        let new_period = cpu_period.map(CpuPeriod::new).transpose()?;
        let (request, limit) = match cpu {
            Some(QuantityArg { request, limit }) => (request.as_ref(), limit.as_ref()),
            None => (None, None),
        };
        let quota = match (limit, cpu_quota) {
            (Some(_), Some(_)) => return Err(ChangeError::Both("cpu-quota")),
            (Some(limit), None) => Some(quantity_arg::quota(limit, new_period.unwrap_or(period))?),
            (None, Some(quota)) => Some(CpuQuota::new(*quota)?),
            (None, None) => None,
        };
        let shares = match (request, cpu_shares) {
            (Some(_), Some(_)) => return Err(ChangeError::Both("cpu-shares")),
            (Some(request), None) => Some(quantity_arg::shares(request)?),
            (None, Some(shares)) => Some(CpuShares::new(*shares)?),
            (None, None) => None,
        };
        let limit = memory.and_then(|memory| memory.limit.as_ref());
        Ok(LimitsPatch {
            cpu_quota: quota,
            // A quota is only valid together with its period.
            cpu_period: new_period.or(quota.map(|_| period)),
            cpu_shares: shares,
            memory: limit.map(quantity_arg::memory).transpose()?,
            memory_swap: memory_swap.as_ref().map(quantity_arg::memory).transpose()?,
            cpuset_cpus: cpuset_cpus.as_deref().map(CpuSet::new).transpose()?,
            cpuset_mems: cpuset_mems.as_deref().map(CpuSet::new).transpose()?,
            ..LimitsPatch::default()
        })
    }

    /// Returns a warning for each value that the kernel cannot enforce as given; `cpus` is the number of CPUs of the
    /// node, if known.
    pub(super) fn warnings(&self, period: CpuPeriod, cpus: Option<u64>) -> Vec<String> {
        let period = self.cpu_period.and_then(|period| CpuPeriod::new(period).ok()).unwrap_or(period);
        let Some(QuantityArg { limit: Some(Limit::Of(limit)), .. }) = &self.cpu else { return Vec::new() };
        let minimum = quantity_arg::minimum_cpu(period);
        let raised = *limit < minimum;
        let raised = raised.then(|| format!("cpu limit {limit} is below the kernel's minimum: {minimum} is set"));
        let above = cpus.filter(|cpus| limit.nanos() > u128::from(*cpus) * 1_000_000_000);
        let above = above.map(|cpus| format!("cpu limit {limit} is above the {cpus} CPUs of this node"));
        [raised, above].into_iter().flatten().collect()
    }

    /// Returns the container's requests and limits (KEP-4112) after the change.
    pub(super) fn stated(&self, had: &Resources) -> Resources {
        let mut resources = had.clone();
        for (name, amount) in [("cpu", self.cpu.as_ref()), ("memory", self.memory().ok().flatten())] {
            let (Some(QuantityArg { request, limit }), Ok(name)) = (amount, name.parse::<QualifiedName>()) else {
                continue;
            };
            if let Some(request) = request {
                resources.requests.insert(name.clone(), request.clone());
            }
            match limit {
                Some(Limit::Of(limit)) => drop(resources.limits.insert(name, limit.clone())),
                Some(Limit::Max) => drop(resources.limits.remove(&name)),
                None => {}
            }
        }
        resources
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, MemoryLimit, Micros};

    use super::*;

    fn period() -> CpuPeriod {
        CpuPeriod::new(100_000).unwrap()
    }

    fn patch(text: &str) -> Result<LimitsPatch, ChangeError> {
        text.parse::<Named>().unwrap().change.patch(period())
    }

    #[test]
    fn a_change_is_parsed_from_one_argument() {
        let Named { name, .. } = "app=cpu:500m".parse().unwrap();
        assert_eq!(name, "app");
        let all = patch("app=cpu:250m/500m,memory:256Mi,cpuset-cpus:0,2-3,cpuset-mems:0").unwrap();
        let expected = LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(50_000))),
            cpu_period: Some(period()),
            cpu_shares: Some(CpuShares::new(256).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(256 << 20))),
            cpuset_cpus: Some(CpuSet::new("0,2-3").unwrap()),
            cpuset_mems: Some(CpuSet::new("0").unwrap()),
            ..LimitsPatch::default()
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn raw_values_and_another_period_are_accepted() {
        let raw = patch("a=cpu-quota:20000,cpu-period:50000,cpu-shares:77").unwrap();
        assert_eq!(raw.cpu_quota, Some(CpuQuota::Micros(Micros(20_000))));
        assert_eq!((raw.cpu_period, raw.cpu_shares), (CpuPeriod::new(50_000).ok(), CpuShares::new(77).ok()));
        let mixed = patch("a=cpu:1,cpu-period:50000").unwrap();
        assert_eq!(mixed.cpu_quota, Some(CpuQuota::Micros(Micros(50_000))));
        let request = patch("a=cpu:1/").unwrap();
        assert_eq!((request.cpu_quota, request.cpu_period), (None, None));
    }

    #[test]
    fn an_invalid_change_is_refused_with_its_key() {
        for (text, word) in [
            ("app", "NAME=KEY:VALUE"),
            ("=cpu:1", "NAME=KEY:VALUE"),
            ("app=", "NAME=KEY:VALUE"),
            ("app=5", "NAME=KEY:VALUE"),
            ("app=gpu:1", "gpu"),
            ("app=cpu:1,cpu:2", "twice"),
            ("app=memory:lots", "memory"),
            ("app=cpu-quota:much", "cpu-quota"),
        ] {
            let words = text.parse::<Named>().unwrap_err().to_string();
            assert!(words.contains(word), "{text}: {words}");
        }
        assert!(matches!(patch("app=memory:?"), Err(ChangeError::Forecast)));
        assert!(matches!(patch("app=cpu:/1,cpu-quota:1000"), Err(ChangeError::Both("cpu-quota"))));
        assert!(matches!(patch("app=cpu:1/,cpu-shares:10"), Err(ChangeError::Both("cpu-shares"))));
        assert!(matches!(patch("app=cpu-shares:1"), Err(ChangeError::Limits(_))));
    }

    #[test]
    fn values_that_the_kernel_cannot_enforce_cause_a_warning() {
        let warnings = |text: &str| text.parse::<Named>().unwrap().change.warnings(period(), Some(2));
        assert_eq!(warnings("a=cpu:1m"), ["cpu limit 1m is below the kernel's minimum: 10m is set"]);
        assert_eq!(
            warnings("a=cpu:100m,cpu-period:5000"),
            ["cpu limit 100m is below the kernel's minimum: 200m is set"]
        );
        assert_eq!(warnings("a=cpu:1000000"), ["cpu limit 1000000 is above the 2 CPUs of this node"]);
        for fine in ["a=cpu:10m", "a=cpu:2", "a=cpu:/max", "a=cpu:1000/max", "a=memory:1Gi"] {
            assert_eq!(warnings(fine), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn requests_and_limits_of_the_pod_spec_follow_the_change() {
        let amounts =
            |list: &[(&str, &str)]| list.iter().map(|(n, a)| (n.parse().unwrap(), a.parse().unwrap())).collect();
        let had = Resources { requests: amounts(&[("cpu", "1")]), limits: amounts(&[("cpu", "2"), ("memory", "1Gi")]) };
        let change = "a=cpu:500m/max,memory:/2Gi".parse::<Named>().unwrap().change;
        let stated = change.stated(&had);
        assert_eq!(stated.requests, amounts(&[("cpu", "500m")]));
        assert_eq!(stated.limits, amounts(&[("memory", "2Gi")]));
    }
}
