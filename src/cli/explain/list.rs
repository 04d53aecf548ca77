//! The list of pods and containers that `crisp explain` prints without an argument.

use std::io::{self, Write};

use serde::Serialize;

use super::super::color::{Color, columns};
use super::super::image::table::short;
use super::super::target::Candidate;

#[derive(Debug, Serialize)]
pub(super) struct Entry {
    kind: &'static str,
    /// `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
    name: String,
    id: String,
    /// Whether the container runs, or the pod is ready.
    running: bool,
}

pub(super) fn entries(all: &[Candidate]) -> Vec<Entry> {
    let entry = |one: &Candidate| Entry {
        kind: one.kind(),
        name: one.full_name().to_owned(),
        id: one.id().to_owned(),
        running: one.alive,
    };
    all.iter().map(entry).collect()
}

pub(super) fn print(out: &mut impl Write, entries: &[Entry], color: Color) -> io::Result<()> {
    let row = |entry: &Entry| {
        let state = match (entry.kind, entry.running) {
            ("pod", true) => "ready",
            ("pod", false) => "not ready",
            (_, true) => "running",
            (_, false) => "not running",
        };
        [entry.name.clone(), short(&entry.id).to_owned(), state.to_owned()]
    };
    let head = ["NAME", "ID", "STATE"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(entries.iter().map(row)).collect();
    for (index, line) in columns(&rows).iter().enumerate() {
        let line = if index == 0 { color.faint(line) } else { line.clone() };
        writeln!(out, "{line}")?;
    }
    Ok(())
}
