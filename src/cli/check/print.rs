//! Prints findings as text or JSON.

use std::io::{self, Write as _};

use serde_json::json;

use super::super::color::Color;
use super::super::output;
use super::super::selftest::Record;
use super::finding::{Finding, Level, can_run};

pub(super) fn findings(found: &[Finding], as_json: bool) -> io::Result<()> {
    let mut out = output::stdout();
    if as_json {
        let all = json!({ "version": env!("CARGO_PKG_VERSION"), "can_run": can_run(found), "findings": found });
        serde_json::to_writer_pretty(&mut out, &all)?;
        return writeln!(out);
    }
    let color = Color::stdout();
    let width = found.iter().map(|one| one.name.chars().count()).max().unwrap_or(0);
    let mut topic = "";
    for one in found {
        if one.topic != topic {
            topic = one.topic;
            writeln!(out, "{}", color.bold(topic))?;
        }
        let mark = match one.level {
            Level::Ok => color.good("ok     "),
            Level::Warn => color.doubtful("warn   "),
            Level::Missing if one.essential => color.bad("missing"),
            Level::Missing => color.doubtful("missing"),
        };
        writeln!(out, "  {mark}  {:width$}  {}", one.name, one.what)?;
        if let Some(hint) = &one.hint {
            writeln!(out, "           {:width$}  {}", "", color.faint(&format!("→ {hint}")))?;
        }
    }
    writeln!(out, "\n{}", summary(found))
}

fn summary(found: &[Finding]) -> String {
    let count = |level| found.iter().filter(|one| one.level == level).count();
    let (warn, missing) = (count(Level::Warn), count(Level::Missing));
    let rest = format!("{} ok, {warn} warnings, {missing} missing", count(Level::Ok));
    let condition_false = |one: &&Finding| one.level != Level::Ok && one.name.ends_with("Ready");
    if !rustix::process::geteuid().is_root() {
        format!("not root, so it is unknown whether pods can run on this host: {rest}")
    } else if let (true, Some(condition)) = (can_run(found), found.iter().find(condition_false)) {
        format!("pods can run on this host, but {} is {}; {rest}", condition.name, condition.what)
    } else if can_run(found) {
        format!("pods can run on this host: {rest}")
    } else {
        format!("pods cannot run on this host: {rest}")
    }
}

/// Prints the result of a live check; with text output the steps are already printed.
pub(super) fn steps(records: &[Record], as_json: bool, failed: &Option<String>) -> io::Result<()> {
    let mut out = output::stdout();
    if as_json {
        let all =
            json!({ "version": env!("CARGO_PKG_VERSION"), "ok": failed.is_none(), "steps": records, "error": failed });
        serde_json::to_writer_pretty(&mut out, &all)?;
        return writeln!(out);
    }
    if failed.is_none() {
        let time: f64 = records.iter().map(|record| record.milliseconds).sum();
        writeln!(out, "\nall {} steps passed in {time:.0} ms", records.len())?;
    }
    Ok(())
}
