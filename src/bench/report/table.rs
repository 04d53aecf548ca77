//! Prints the report of a benchmark as text tables.

use std::io::{self, Write};

use super::results::Unit;
use super::statistics::{Ratio, median};
use super::{Measured, Report, Summary};

/// Width of the column of names.
const NAME: usize = 42;

pub(crate) fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let machine = &report.machine;
    writeln!(out, "{} on {}: {}", report.date, machine.host, report.command)?;
    writeln!(out, "Linux {}, {} processors, cgroups {}", machine.kernel, machine.processors, machine.cgroups)?;
    for runtime in &report.runtimes {
        let from = runtime.processor_time_from;
        let (name, version, errors) = (&runtime.name, &runtime.version, runtime.errors);
        let directories = runtime.filesystems();
        writeln!(out, "{name}: {version}, {errors} errors, CPU time from {from}, {directories}{}", shared(runtime))?;
    }
    figures(out, report)?;
    growth(out, report)?;
    floor(out, report)?;
    failures(out, report)?;
    budgets(out, report)
}

/// Returns a remark about a benchmark that runs from the daemon's file.
pub(crate) fn shared(runtime: &Measured) -> &'static str {
    if runtime.shares_program { ", the benchmark runs from the same file" } else { "" }
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// Formats a ratio; below 1 with more decimals.
pub(crate) fn ratio_text(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 0.995 => format!("{ratio:.3}"),
        ratio if ratio < 100.0 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.0}"),
    }
}

fn interval(ratio: Option<Ratio>) -> String {
    let Some(Ratio { ratio, low, high }) = ratio else { return String::new() };
    format!("{} [{}, {}]", ratio_text(ratio), ratio_text(low), ratio_text(high))
}

fn figures(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some((first, others)) = report.runtimes.split_first() else { return Ok(()) };
    if report.names().is_empty() {
        return Ok(());
    }
    write!(out, "\n{:<NAME$}{:>6}", "", "")?;
    for runtime in &report.runtimes {
        write!(out, "{:>27}", runtime.name)?;
    }
    for other in others {
        write!(out, "  {:>26}", format!("{}/{}", first.name, other.name))?;
    }
    write!(out, "\n{:<NAME$}{:>6}", "", "")?;
    for _ in &report.runtimes {
        write!(out, "{:>9}{:>9}{:>9}", "p50", "p90", "p99")?;
    }
    for _ in others {
        write!(out, "  {:>26}", "ratio [95 %]")?;
    }
    writeln!(out)?;
    for (name, unit) in report.names() {
        write!(out, "{name:<NAME$}{:>6}", unit.label())?;
        for runtime in &report.runtimes {
            cells(out, runtime.figure(name))?;
        }
        for other in others {
            write!(out, "  {:>26}", interval(report.ratio(name, &other.name)))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn cells(out: &mut impl Write, figure: Option<&Summary>) -> io::Result<()> {
    let [p50, p90, p99] = figure.map_or([None; 3], |figure| [figure.p50, figure.p90, figure.p99]).map(number);
    write!(out, "{p50:>9}{p90:>9}{p99:>9}")
}

/// Prints medians by number of pods.
fn growth(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some(longest) = report.runtimes.iter().map(|runtime| &runtime.growth).max_by_key(|growth| growth.len()) else {
        return Ok(());
    };
    let Some(first) = longest.first() else { return Ok(()) };
    write!(out, "\n{:<NAME$}{:>6}", "medians by number of pods", "")?;
    for step in longest {
        write!(out, "{:>9}", step.pods)?;
    }
    writeln!(out)?;
    for Summary { name, unit, .. } in &first.figures {
        for runtime in report.runtimes.iter().filter(|runtime| !runtime.growth.is_empty()) {
            write!(out, "{:<NAME$}{:>6}", format!("{name}, {}", runtime.name), unit.label())?;
            for step in &runtime.growth {
                let value = step.figure(name).and_then(|figure| median(&figure.values));
                write!(out, "{:>9}", number(value))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn floor(out: &mut impl Write, report: &Report) -> io::Result<()> {
    if report.floor.is_empty() {
        return Ok(());
    }
    let ours = report.runtimes.first();
    writeln!(out, "\n{:<NAME$}{:>6}{:>9}{:>9}{:>9}{:>9}", "the kernel alone", "", "p50", "p90", "p99", "runtime")?;
    for figure in &report.floor {
        write!(out, "{:<NAME$}{:>6}", figure.name, figure.unit.label())?;
        cells(out, Some(figure))?;
        let ours = ours.and_then(|ours| median(ours.values(&figure.name)));
        writeln!(out, "{:>9}", number(ours))?;
    }
    Ok(())
}

fn failures(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let of_runtimes = report.runtimes.iter().flat_map(|runtime| {
        let growth = runtime.growth.iter().flat_map(|step| &step.figures);
        runtime.figures.iter().chain(growth).map(|figure| (runtime.name.as_str(), figure))
    });
    let all = of_runtimes.chain(report.floor.iter().map(|figure| ("kernel", figure)));
    for (index, (name, figure)) in all.filter(|(_, figure)| figure.errors > 0).enumerate() {
        if index == 0 {
            writeln!(out, "\nerrors")?;
        }
        let why = figure.first_error.as_deref().unwrap_or_default();
        writeln!(out, "{name}: {}: {} times, first: {why}", figure.name, figure.errors)?;
    }
    Ok(())
}

fn budgets(out: &mut impl Write, report: &Report) -> io::Result<()> {
    if report.budgets.is_empty() {
        return Ok(());
    }
    let missed = report.budgets.iter().filter(|verdict| !verdict.met).count();
    let met = report.budgets.len() - missed;
    writeln!(out, "\nbudgets: {met} met, {missed} missed ('?': the interval contains the limit)")?;
    for verdict in &report.budgets {
        let sign = if verdict.at_least { "≥" } else { "≤" };
        let limit = format!("{sign} {} {}", ratio_text(verdict.limit), verdict.of);
        let floor = verdict.floor.map(|floor| format!("  kernel alone: {floor:.2} of the value")).unwrap_or_default();
        let (what, word) = (verdict.what, verdict.word());
        writeln!(out, "{what:<NAME$}{:>28}   {limit:<26}{word}{floor}", interval(Some(verdict.measured)))?;
    }
    Ok(())
}

/// Returns the label that states which values are better.
pub(crate) fn better(unit: Unit) -> &'static str {
    if unit.more_is_better() { "more is better" } else { "less is better" }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
