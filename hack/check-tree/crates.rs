//! Dependencies between the crates of the workspace. Those on crates of others are in deny.toml.

use crate::Finding;

/// Each crate, and the crates it may depend on outside its tests.
const ALLOWED: [(&str, &str); 26] = [
    // Libraries without domain types.
    ("cgroup-procs", ""),
    ("cri-api", ""),
    ("h2-authority", ""),
    ("model", ""),
    ("streaming", "sync"),
    ("sync", ""),
    ("sys", ""),
    // Parts of the runtime; none of them has gRPC.
    ("cgroup", "cgroup-procs model sync sys"),
    ("image", "model safe-fs sync"),
    ("net", "model safe-fs sync sys"),
    ("nri", "model sync sys"),
    ("safe-fs", "model"),
    ("security", "model safe-fs sync sys"),
    ("config", "cgroup image model net safe-fs security streaming sync"),
    ("oci", "cgroup config image model safe-fs security shim-protocol sync"),
    // The shim shares with the daemon its protocol, and how to list and kill the processes of a cgroup.
    ("shim-protocol", "model sys"),
    ("launcher", "model safe-fs shim-protocol sys"),
    ("crisp-shim", "cgroup-procs launcher model shim-protocol sys"),
    // Programs.
    (
        "daemon",
        "cgroup config cri-api h2-authority image model net oci safe-fs security shim-protocol streaming sync sys",
    ),
    ("cli", "cgroup config cri-api daemon image model net oci safe-fs security sync sys"),
    ("bench", "cgroup cri-api model net streaming sys"),
    ("crisp", "bench cli daemon"),
    // Tests, examples and checks.
    ("check-tree", ""),
    ("dra-driver", "cri-api h2-authority"),
    ("e2e", ""),
    ("fuzz", "daemon image net nri oci streaming"),
];

/// Checks one Cargo.toml; `members` are the names of all crates of the workspace.
pub(crate) fn check(path: &str, manifest: &str, members: &[String]) -> Vec<Finding> {
    let Some(name) = name(manifest) else { return Vec::new() };
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        return vec![Finding::new(path, 0, format!("{name} is missing in hack/check-tree/crates.rs"))];
    };
    let mut findings = Vec::new();
    let mut section = "";
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_own = members.iter().any(|member| member == dependency);
        if section == "[dependencies]" && is_own && !allowed.split(' ').any(|crate_| crate_ == dependency) {
            let rule = format!("{name} must not depend on {dependency}; see hack/check-tree/crates.rs");
            findings.push(Finding::new(path, number + 1, rule));
        }
    }
    findings
}

/// Returns the name of the package in a Cargo.toml; `None` for the workspace.
pub(crate) fn name(manifest: &str) -> Option<&str> {
    manifest.strip_prefix("[package]\nname = \"")?.split('"').next()
}
