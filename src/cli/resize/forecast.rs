//! `crisp resize TARGET --memory '?'`: how far the memory limit can be lowered. Changes nothing; `--probe` moves page
//! cache out. The files are read here, as `crisp explain` does.

use std::io::{self, Write};

use cgroup::{Cgroup, Probe, ProbeEnd, ProbeLimits, ShrinkForecast};
use serde::Serialize;

use super::super::command::CommandError;
use super::super::{output, units};
use super::ResizeError;

/// The forecast of one pod or container.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    kind: &'static str,
    name: String,
    id: String,
    cgroup: String,
    #[serde(flatten)]
    memory: ShrinkForecast,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
}

#[derive(Debug, thiserror::Error)]
pub enum ForecastFailure {
    #[error("forecasting the memory of {name}")]
    Read { name: String, source: cgroup::ForecastError },
    #[error("probing the memory of {name}")]
    Probe { name: String, source: cgroup::ProbeError },
}

impl Forecast {
    pub(super) fn of(
        kind: &'static str,
        name: String,
        id: String,
        group: &Cgroup,
        probe: bool,
    ) -> Result<Self, ForecastFailure> {
        let read = || cgroup::forecast(group).map_err(|source| ForecastFailure::Read { name: name.clone(), source });
        let mut memory = read()?;
        let mut probed = None;
        if probe {
            let failed = |source| ForecastFailure::Probe { name: name.clone(), source };
            probed = Some(cgroup::probe(group, ProbeLimits::default()).map_err(failed)?);
            memory = read()?;
        }
        Ok(Self { kind, name, id, cgroup: group.path().as_str().to_owned(), memory, probe: probed })
    }
}

pub(super) fn print(forecasts: &[Forecast], json: bool) -> Result<(), ResizeError> {
    let mut out = output::stdout();
    let printed = if json { print_json(&mut out, forecasts) } else { print_text(&mut out, forecasts) };
    Ok(printed.map_err(CommandError::Print)?)
}

/// One object for a container, a list for a pod.
fn print_json(out: &mut impl Write, forecasts: &[Forecast]) -> io::Result<()> {
    match forecasts {
        [one] if one.kind == "container" => serde_json::to_writer_pretty(&mut *out, one)?,
        several => serde_json::to_writer_pretty(&mut *out, several)?,
    }
    writeln!(out)
}

fn print_text(out: &mut impl Write, forecasts: &[Forecast]) -> io::Result<()> {
    for Forecast { kind, name, memory, probe, .. } in forecasts {
        let ShrinkForecast { usage, limit, anonymous, unevictable, kernel, file, reclaimable, smallest_limit } = memory;
        let limit = limit.map_or_else(|| "no limit".to_owned(), units::bytes);
        writeln!(out, "{kind} {name}: memory limit {limit}, {} in use", units::measured(*usage))?;
        for (what, bytes) in
            [("anonymous", anonymous), ("file", file), ("kernel", kernel), ("unevictable", unevictable)]
        {
            writeln!(out, "  {what:<12} {}", units::measured(*bytes))?;
        }
        writeln!(out, "  {:<12} {}", "reclaimable", units::measured(*reclaimable))?;
        if let Some(probe) = probe {
            writeln!(out, "  {}", probe_words(probe))?;
        }
        writeln!(out, "smallest limit that would be accepted now: {smallest_limit} ({})", whole_mib(*smallest_limit))?;
    }
    Ok(())
}

/// The value rounded up, for `--memory`.
fn whole_mib(bytes: u64) -> String {
    format!("{}Mi", bytes.div_ceil(1 << 20))
}

fn probe_words(Probe { reclaimed, refaulted, refaulted_per_second, milliseconds, usage, ended }: &Probe) -> String {
    let why = match ended {
        ProbeEnd::Refaults => "the rest is in use",
        ProbeEnd::NothingMore => "the kernel reclaimed no more",
        ProbeEnd::AllReclaimed => "all was reclaimed",
        ProbeEnd::Deadline => "the time was over",
    };
    format!(
        "probe: reclaimed {} in {}.{} s, {} of it read back ({} per second), {} in use; ended since {why}",
        units::measured(*reclaimed),
        milliseconds / 1000,
        milliseconds % 1000 / 100,
        units::measured(*refaulted),
        units::measured(*refaulted_per_second),
        units::measured(*usage),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_ends_with_the_value_for_the_option() {
        let memory = ShrinkForecast {
            usage: 90 << 20,
            limit: Some(128 << 20),
            anonymous: 48 << 20,
            kernel: 2 << 20,
            file: 40 << 20,
            reclaimable: 40 << 20,
            smallest_limit: (50 << 20) + 4096,
            unevictable: 0,
        };
        let probe = Probe {
            reclaimed: 8 << 20,
            refaulted: 1 << 20,
            refaulted_per_second: 1 << 19,
            milliseconds: 2050,
            usage: 82 << 20,
            ended: ProbeEnd::Refaults,
        };
        let forecast = Forecast {
            kind: "container",
            name: "web".into(),
            id: "c1".into(),
            cgroup: "/p/c1".into(),
            memory,
            probe: Some(probe),
        };
        let mut out = Vec::new();
        print_text(&mut out, std::slice::from_ref(&forecast)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("container web: memory limit 128Mi, 90.0 MiB in use\n"), "{text}");
        assert!(
            text.contains("  anonymous    48.0 MiB\n") && text.contains("read back (0.5 MiB per second)"),
            "{text}"
        );
        assert!(text.ends_with("smallest limit that would be accepted now: 52432896 (51Mi)\n"), "{text}");
        let mut out = Vec::new();
        print_json(&mut out, &[forecast]).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&json["smallest_limit"], &json["probe"]["ended"]), (&52_432_896.into(), &"refaults".into()));
    }
}
