//! Prints a view as text or JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::SystemTime;

use cgroup::EffectiveLimits;
use model::pod_resources::{ResourceList, Resources};

use super::super::cgroup_files::{Row, readable};
use super::super::color::{Color, columns};
use super::super::effective_limits;
use super::super::image::table::short;
use super::view::{ContainerView, PodView, View};
use super::{inside, list};

pub(super) fn json(out: &mut impl Write, view: &View) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, view)?;
    writeln!(out)
}

pub(super) fn text(out: &mut impl Write, view: &View) -> io::Result<()> {
    let color = Color::stdout();
    match view {
        View::Container(view) => {
            let head = format!("container {} ({}) of pod {}", view.name, short(&view.id), short(&view.pod));
            writeln!(out, "{}: {}", color.bold(&head), state(view))?;
            container(out, view, color)
        }
        View::Pod(view) => pod(out, view, color),
        View::List(entries) => list::print(out, entries, color),
    }
}

fn state(view: &ContainerView) -> String {
    match (&view.ended, view.pid) {
        (Some(ended), _) => {
            let message = if ended.message.is_empty() { String::new() } else { format!(": {}", ended.message) };
            format!("exited with code {} ({}{message})", ended.code, ended.reason)
        }
        (None, Some(pid)) => format!("{}, pid {pid}", view.state),
        (None, None) => view.state.to_owned(),
    }
}

fn container(out: &mut impl Write, view: &ContainerView, color: Color) -> io::Result<()> {
    if let Some(resources) = &view.kubernetes {
        writeln!(out, "pod spec: {}", spec(resources))?;
    }
    if !view.has_cgroup {
        writeln!(out, "cgroup {} no longer exists: no limits are active", view.cgroup)?;
    }
    let score = view.oom_score.as_ref().map(|score| {
        let show = |score: Option<i16>| score.map(|score| score.to_string());
        let file = match view.pid {
            Some(pid) => format!("/proc/{pid}/oom_score_adj"),
            None => "oom_score_adj".to_owned(),
        };
        ["OOM score".to_owned(), dash(show(score.asked)), "-".to_owned(), dash(show(score.actual)), file]
    });
    table(out, &view.files, score, color)?;
    effective(out, view.effective.as_ref())?;
    view.inside.as_ref().map_or(Ok(()), |inside| inside::print(out, inside))
}

/// Prints the lowest limits of all levels.
fn effective(out: &mut impl Write, limits: Option<&EffectiveLimits>) -> io::Result<()> {
    let lines = limits.map(|limits| effective_limits::lines(limits, SystemTime::now())).unwrap_or_default();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn pod(out: &mut impl Write, view: &PodView, color: Color) -> io::Result<()> {
    let head = format!("pod {}/{} ({})", view.namespace, view.name, short(&view.id));
    writeln!(out, "{}: {}", color.bold(&head), view.state)?;
    let owner = match view.owner {
        "crisp" => "managed by crisp: limits follow the pod's resources",
        _ => "managed by the client: crisp never changes its limits",
    };
    writeln!(out, "cgroup {} ({owner})", view.cgroup)?;
    if let Some(overhead) = &view.overhead {
        writeln!(out, "pod overhead: {overhead}")?;
    }
    if let Some(announced) = &view.announced {
        let one = |name: &str, resources: &Option<Resources>| {
            let none = Resources::default();
            format!("{name}: {}", spec(resources.as_ref().unwrap_or(&none)))
        };
        let mut lines: Vec<String> = Vec::new();
        lines.extend(announced.resources.is_some().then(|| one("pod", &announced.resources)));
        lines.extend(announced.containers.iter().map(|container| one(&container.name, &container.resources)));
        writeln!(out, "declared (KEP-4112): {}", lines.join("; "))?;
    }
    if view.has_cgroup {
        table(out, &view.files, None, color)?;
        effective(out, view.effective.as_ref())?;
    } else {
        writeln!(out, "the cgroup no longer exists: no limits are active")?;
    }
    for view in &view.containers {
        let head = format!("container {} ({})", view.name, short(&view.id));
        writeln!(out, "\n{}: {}", color.bold(&head), state(view))?;
        container(out, view, color)?;
    }
    Ok(())
}

/// Formats requests and limits in one line.
fn spec(resources: &Resources) -> String {
    let list = |amounts: &ResourceList| {
        let all: Vec<String> = amounts.iter().map(|(name, amount)| format!("{} {amount}", name.as_str())).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    format!("requests {}; limits {}", list(&resources.requests), list(&resources.limits))
}

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Prints the rows, and the directories of their files.
fn table(out: &mut impl Write, files: &[Row], more: Option<[String; 5]>, color: Color) -> io::Result<()> {
    if files.is_empty() && more.is_none() {
        return Ok(());
    }
    let head = ["", "REQUESTED", "APPLIED", "ACTUAL", "FILE"].map(str::to_owned);
    let cells = |row: &Row| {
        let value = |text: &Option<String>| dash(text.as_deref().map(|text| readable(&row.file, text)));
        [row.what.to_owned(), dash(row.asked.clone()), dash(row.applied.clone()), value(&row.actual), row.file.clone()]
    };
    let rows: Vec<[String; 5]> = [head].into_iter().chain(files.iter().map(cells)).chain(more).collect();
    let lines = columns(&rows);
    let mut lines = lines.iter();
    if let Some(head) = lines.next() {
        writeln!(out, "{}", color.faint(head))?;
    }
    for (line, row) in lines.by_ref().zip(files) {
        if row.drift {
            writeln!(out, "{}", color.bad(&format!("{line}  ← changed outside crisp")))?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    lines.try_for_each(|line| writeln!(out, "{line}"))?;
    directories(files).iter().try_for_each(|line| writeln!(out, "{}", color.faint(line)))
}

/// Lists each directory once, with the controllers of the files in it.
fn directories(files: &[Row]) -> Vec<String> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in files {
        let controller = row.file.split('.').next().unwrap_or_default();
        let dir = row.path.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        let controllers = found.entry(dir).or_default();
        if !controllers.contains(&controller) {
            controllers.push(controller);
        }
    }
    found.into_iter().map(|(dir, controllers)| format!("{}: {dir}", controllers.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(file: &str, dir: &str, drift: bool) -> Row {
        Row {
            what: "memory",
            file: file.to_owned(),
            path: format!("{dir}/{file}").into(),
            asked: Some("64Mi".to_owned()),
            applied: Some("67108864".to_owned()),
            actual: Some("1048576".to_owned()),
            drift,
        }
    }

    #[test]
    fn drift_is_marked_and_each_directory_is_listed_once() {
        let files = [row("memory.max", "/c/a", true), row("cpu.max", "/c/a", false)];
        let mut out = Vec::new();
        table(&mut out, &files, None, Color::none()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("1048576 (1Mi)") && lines[1].contains("changed outside crisp"), "{text}");
        assert!(!lines[2].contains("changed outside crisp"), "{text}");
        assert_eq!(lines[3], "memory, cpu: /c/a");
    }
}
