//! Cycles between the top-level modules of each crate, from its paths that begin with `crate::`.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::rust_source::RustSource;

/// Crates with cycles that are not removed yet; none may be added.
const CYCLIC: [&str; 4] = ["src/cgroup", "src/image", "src/launcher", "src/model"];
/// Layers of the daemon: each may use those after it only.
const DAEMON: [&str; 4] = ["grpc", "convert", "runtime", "store"];

/// The modules of a crate and those they use, with the file of one such use.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default)]
pub(crate) struct Modules {
    crates: BTreeMap<String, Graph>,
}

impl Modules {
    pub(crate) fn add(&mut self, path: &str, content: &str) {
        let mut parts = path.splitn(4, '/');
        let (Some("src"), Some(name), Some(module)) = (parts.next(), parts.next(), parts.next()) else { return };
        let module = module.trim_end_matches(".rs");
        // Tests may use all modules, and lib.rs declares them.
        if path.contains("test") || matches!(module, "lib" | "main" | "fake" | "suite" | "fuzzing") {
            return;
        }
        let graph = self.crates.entry(format!("src/{name}")).or_default();
        let uses = graph.entry(module.to_owned()).or_default();
        let source = RustSource::parse(content);
        let code = source.code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (position, prefix) in code.match_indices("crate::") {
            for used in first_names(&code[position + prefix.len()..]) {
                uses.entry(used).or_insert_with(|| path.to_owned());
            }
        }
        uses.remove(module);
    }

    pub(crate) fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, graph) in &self.crates {
            if name == "src/daemon" {
                findings.extend(wrong_layers(graph));
            }
            if !CYCLIC.contains(&name.as_str()) {
                findings.extend(cycle(graph).map(|cycle| Finding::new(name, 0, format!("cycle of modules: {cycle}"))));
            }
        }
        findings
    }
}

/// Returns the modules that a path after `crate::` begins with: one name, or several in braces.
fn first_names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut depth = 0;
    let mut is_first = true;
    for c in path.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => {
                names.push(String::new());
                is_first = true;
            }
            _ if c.is_alphanumeric() || c == '_' => {
                if let (true, Some(name)) = (is_first, names.last_mut()) {
                    name.push(c);
                }
            }
            ' ' | '\n' if names.last().is_some_and(String::is_empty) => {}
            _ => is_first = false,
        }
        if depth == 0 && !is_first || depth < 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn wrong_layers(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (position, layer) in DAEMON.iter().enumerate() {
        for upper in &DAEMON[..position] {
            if let Some(path) = graph.get(*layer).and_then(|uses| uses.get(*upper)) {
                findings.push(Finding::new(
                    path,
                    0,
                    format!("{layer} must not use {upper}; layers: {}", DAEMON.join(", ")),
                ));
            }
        }
    }
    findings
}

/// Returns one cycle, such as `a -> b -> a`.
fn cycle(graph: &Graph) -> Option<String> {
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| search(graph, module, &mut Vec::new(), &mut done))
}

fn search<'a>(
    graph: &'a Graph,
    module: &'a str,
    path: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<String> {
    if let Some(start) = path.iter().position(|above| *above == module) {
        return Some([&path[start..], &[module]].concat().join(" -> "));
    }
    if !done.insert(module) {
        return None;
    }
    path.push(module);
    let found = graph.get(module)?.keys().find_map(|used| search(graph, used, path, done));
    path.pop();
    found
}
