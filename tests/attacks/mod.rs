//! Attacks on container runtimes. `docs/attacks.md` lists them with their tests.

mod fd_leaks;
mod host_state;
mod logs;
mod masked_paths;
mod mount_targets;
mod neighbours;
mod propagation;
mod racer;
mod races;
mod request_fields;
mod runtime_binary;
mod tracer;

use std::fs;
use std::path::Path;

use host_state::Outside;
pub(crate) use racer::Racer;

#[test]
fn every_test_in_the_table_of_attacks_exists() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = include_str!("../../docs/attacks.md").lines().filter(|line| line.starts_with("| "));
    let mut count = 0;
    for name in table.flat_map(|line| line.split('`').skip(1).step_by(2)) {
        if name.starts_with("src/") || name.starts_with("tests/") {
            assert!(tests.parent().unwrap().join(name).exists(), "there is no {name}");
        }
        if !name.contains("::") {
            continue;
        }
        let (module, function) = name.rsplit_once("::").unwrap();
        let path = tests.join(module.replace("::", "/"));
        let file = [path.with_extension("rs"), path.join("mod.rs")].into_iter().find(|file| file.exists());
        let text = file.map(|file| fs::read_to_string(file).unwrap()).unwrap_or_default();
        assert!(text.contains(&format!("#[test]\nfn {function}()")), "there is no test {name}");
        count += 1;
    }
    assert!(count > 90, "{count}");
}
