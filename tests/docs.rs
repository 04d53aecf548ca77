//! The documentation against the code: links, paths, test names, promises.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::harness::program;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the paths of all files below `dir` with the extension `extension`, relative to the repository.
fn files(dir: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root().join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn pages() -> Vec<String> {
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    let top = top.into_iter().filter(|path| root().join(path).exists()).map(str::to_owned);
    top.chain(["docs", "examples", "proto"].into_iter().flat_map(|dir| files(dir, "md"))).collect()
}

/// Returns the text between backticks in one line.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn lines_outside_code_blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut block = false;
    text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        block ^= fence;
        !block && !fence
    })
}

/// Returns the anchor of a heading, as forges compute it.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn has_test(text: &str) -> bool {
    text.contains("#[test]") || text.contains("#[tokio::test")
}

/// Returns the source file of a module of this test program.
fn module_file(module: &str) -> Option<PathBuf> {
    let path = root().join("tests").join(module.replace("::", "/"));
    [path.with_extension("rs"), path.join("mod.rs")].into_iter().find(|file| file.exists())
}

/// Returns why `name` does not lead to a test, or `None` if it does.
///
/// A name is a test of this program (`module::test`), one of its modules (`module`), or the path of a file or folder
/// with tests.
fn missing_test(name: &str) -> Option<String> {
    if name.contains('/') {
        let path = root().join(name);
        let sources = match path.is_dir() {
            true => files(name, "rs"),
            false => vec![name.to_owned()],
        };
        let found =
            sources.iter().any(|source| fs::read_to_string(root().join(source)).is_ok_and(|text| has_test(&text)));
        let seeds = name.starts_with("tests/fuzz") && path.exists();
        return (!found && !seeds).then(|| format!("{name} has no test"));
    }
    if let Some((module, function)) = name.rsplit_once("::") {
        let text = module_file(module).map(|file| fs::read_to_string(file).unwrap()).unwrap_or_default();
        if text.contains(&format!("fn {function}()")) {
            return None;
        }
    }
    module_file(name).is_none().then(|| format!("there is no test {name}"))
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    for page in pages() {
        let text = read(&page);
        let dir = Path::new(&page).parent().unwrap();
        for line in lines_outside_code_blocks(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.contains("://") {
                    continue;
                }
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = if path.is_empty() { root().join(&page) } else { root().join(dir).join(path) };
                assert!(target.exists(), "{page}: broken link {link}");
                if !heading.is_empty() {
                    let text = fs::read_to_string(&target).unwrap();
                    let found = lines_outside_code_blocks(&text).any(|it| it.starts_with('#') && anchor(it) == heading);
                    assert!(found, "{page}: no heading for {link}");
                }
            }
        }
    }
}

#[test]
fn every_path_in_the_docs_exists() {
    let folders = ["src/", "tests/", "docs/", "hack/", "runtime-config/", "proto/", "examples/"];
    for page in pages() {
        if page == "CHANGELOG.md" {
            continue;
        }
        for line in lines_outside_code_blocks(&read(&page)) {
            for token in code(line) {
                let plain = !token.contains(|c: char| c.is_whitespace() || "*<>{$|".contains(c));
                if plain && folders.iter().any(|folder| token.starts_with(folder)) && token.to_uppercase() != token {
                    let path = token.trim_end_matches('/');
                    let placeholder = path.contains("NAME") || path.contains("TARGET");
                    assert!(placeholder || root().join(path).exists(), "{page}: there is no {token}");
                }
            }
        }
    }
}

#[test]
fn every_test_that_the_docs_name_exists() {
    let modules: BTreeSet<_> = read("tests/main.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';').map(str::to_owned))
        .collect();
    for page in pages() {
        for line in lines_outside_code_blocks(&read(&page)) {
            for token in code(line).filter(|token| token.contains("::") && !token.ends_with("::")) {
                let first = token.split("::").next().unwrap();
                if modules.contains(first) {
                    assert_eq!(missing_test(token), None, "{page}");
                }
            }
        }
    }
}

/// The rows of a table of promises: the promise, and the tests that show it.
fn promises(text: &str) -> Vec<(String, Vec<String>)> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).filter_map(|line| {
        let (promise, tests) = line.strip_prefix('|')?.strip_suffix('|')?.rsplit_once('|')?;
        Some((promise.trim().to_owned(), code(tests).map(str::to_owned).collect()))
    });
    rows.filter(|(promise, _)| !promise.starts_with("promise")).collect()
}

fn check_promises(text: &str) -> Result<usize, String> {
    let rows = promises(text);
    let mut seen = BTreeSet::new();
    for (promise, tests) in &rows {
        if !seen.insert(promise) {
            return Err(format!("listed twice: {promise}"));
        }
        let tests: Vec<_> = tests.iter().filter(|test| !test.starts_with("hack/")).collect();
        if tests.is_empty() {
            return Err(format!("no test for: {promise}"));
        }
        for test in tests {
            if let Some(missing) = missing_test(test) {
                return Err(format!("{promise}: {missing}"));
            }
        }
    }
    Ok(rows.len())
}

fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text.find(heading).unwrap_or_else(|| panic!("there is no heading {heading}"));
    let body = &text[start + heading.len()..];
    &body[..body.find("\n## ").unwrap_or(body.len())]
}

#[test]
fn every_promise_has_a_test_that_exists() {
    let testing = read("docs/testing.md");
    let count = check_promises(section(&testing, "## Promises")).unwrap();
    assert!(count > 90, "{count}");
}

#[test]
fn a_promise_without_an_existing_test_is_an_error() {
    let bad = [
        "| A promise | |",
        "| A promise | nothing yet |",
        "| A promise | `hack/dev bench` |",
        "| A promise | `docs::no_such_test` |",
        "| A promise | `nomodule` |",
        "| A promise | `src/model/lib.rs` |",
        "| A promise | `src/no/such/file.rs` |",
        "| A promise | `docs` |\n| A promise | `docs` |",
    ];
    for row in bad {
        assert!(check_promises(row).is_err(), "{row}");
    }
    let good = "| promise | shown by |\n|---|---|\n| One | `docs::every_promise_has_a_test_that_exists` |\n\
                | Two | `attacks`, `src/cgroup/tests.rs`; its time by `hack/dev bench scale` |";
    assert_eq!(check_promises(good), Ok(2));
}

#[test]
fn every_test_file_belongs_to_a_promise_or_an_attack() {
    let listed = format!("{}{}", section(&read("docs/testing.md"), "## Promises"), read("docs/attacks.md"));
    let mut unlisted = Vec::new();
    for file in files("tests", "rs") {
        let tested = !file.starts_with("tests/fuzz") && !file.starts_with("tests/support") && has_test(&read(&file));
        let module =
            file.trim_start_matches("tests/").trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let first = module.split("::").next().unwrap();
        let ways = [
            format!("`{file}`"),
            format!("`{module}`"),
            format!("`{module}::"),
            format!("`{first}`"),
            format!("`tests/{first}/`"),
            format!("`tests/{first}`"),
        ];
        let own = module == "docs";
        if tested && !own && !ways.iter().any(|way| listed.contains(way)) {
            unlisted.push(file);
        }
    }
    assert!(unlisted.is_empty(), "no promise and no attack names {unlisted:?}");
}

/// Returns the settings of `runtime-config/crisp.toml` with their default values, and the section headers as prefixes.
fn settings() -> Vec<(String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in read("runtime-config/crisp.toml").lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((key, value)) = line.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            settings.push((format!("{section}{key}"), value.to_owned()));
        }
    }
    settings
}

#[test]
fn the_configuration_page_has_every_setting_with_its_default() {
    let file = read("runtime-config/crisp.toml").replace("\n# ", " ");
    let (_, restart) = file.split_once("restart, except these: ").unwrap();
    let restart: Vec<_> =
        restart.split(". ").next().unwrap().split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let needs_restart = |key: &str| {
        restart.iter().any(|name| match name.strip_prefix('[') {
            Some(section) => key.starts_with(&format!("{}.", section.trim_end_matches(']'))),
            None => key == *name,
        })
    };
    let page = read("docs/configuration.md");
    let mut listed: BTreeSet<_> =
        section(&page, "## Settings").lines().filter_map(|line| line.strip_prefix("| `")).collect();
    for (key, default) in settings() {
        if let Some((_, key)) = key.rsplit_once('.').filter(|_| key.starts_with("handlers.")) {
            assert!(section(&page, "## Handlers").contains(&format!("`{key}`")), "handlers: {key}");
        } else if let Some((_, key)) = key.rsplit_once('.').filter(|_| key.starts_with("registries.")) {
            assert!(
                section(&page, "## Registries").contains(&format!("| `{key}` | `{default}` |")),
                "registries: {key}"
            );
        } else {
            let default = if default.len() > 60 { "14 names".to_owned() } else { format!("`{default}`") };
            let restart = if needs_restart(&key) { "yes" } else { "" };
            let row = format!("{key}` | {default} | {restart} | ");
            let found = listed.iter().find(|line| line.starts_with(&row)).copied();
            assert!(found.is_some_and(|line| listed.remove(line)), "no row in docs/configuration.md: | `{row}");
        }
    }
    assert!(listed.is_empty(), "not settings: {listed:?}");
}

#[test]
fn the_observability_page_has_every_metric() {
    let page = read("docs/observability.md");
    let sources: String = files("src/daemon/metrics", "rs").iter().map(|file| read(file)).collect();
    let prefixes = ["crisp_", "process_"];
    let code = sources.split('"').filter(|text| prefixes.iter().any(|prefix| text.starts_with(prefix)));
    let metrics: BTreeSet<_> = code.filter(|text| text.chars().all(|c| c.is_ascii_lowercase() || c == '_')).collect();
    assert!(metrics.len() > 15, "{metrics:?}");
    for metric in &metrics {
        assert!(page.contains(&format!("| `{metric}` |")), "no row in docs/observability.md: {metric}");
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split('`').next());
    for row in rows.filter(|row| prefixes.iter().any(|prefix| row.starts_with(prefix))) {
        assert!(metrics.contains(row), "not a metric: {row}");
    }
}

#[test]
fn architecture_md_is_one_page_and_names_every_crate_and_call() {
    let page = read("ARCHITECTURE.md");
    assert!(page.lines().count() <= 150, "ARCHITECTURE.md has {} lines, at most 150", page.lines().count());
    for manifest in files("src", "toml") {
        let text = read(&manifest);
        let name = text.split('"').nth(1).unwrap();
        assert!(page.contains(&format!("| `{name}`")), "crate {name} is not in ARCHITECTURE.md");
    }
    for proto in files("proto/cri", "proto").into_iter().chain(files("proto/admin", "proto")) {
        for line in read(&proto).lines().filter_map(|line| line.trim().strip_prefix("rpc ")) {
            let call = line.split('(').next().unwrap().trim();
            let group = ["Stream", "List"].iter().find_map(|prefix| call.strip_prefix(prefix));
            let named = page.contains(call) || group.is_some_and(|rest| page.contains(rest));
            assert!(named, "{call} is not in ARCHITECTURE.md");
        }
    }
}

#[test]
fn the_page_of_commands_has_every_command_and_option() {
    let page = read("docs/cli.md");
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = Command::new(program("crisp")).args(&words).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let (_, subcommands) = help.split_once("\nCommands:\n").unwrap_or_default();
        for line in subcommands.lines().take_while(|line| !line.is_empty()) {
            let name = line.split_whitespace().next().unwrap();
            if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
                commands.push([command.clone(), vec![name.to_owned()]].concat());
            }
        }
        if !command.is_empty() && subcommands.is_empty() {
            assert!(page.contains(&format!("`crisp {}`", command.join(" "))), "docs/cli.md lacks crisp {command:?}");
        }
        if command.first().is_some_and(|name| name == "bench") {
            continue;
        }
        for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
            let option = line.split([' ', ',']).find(|word| word.starts_with("--")).unwrap_or("--help");
            let known = ["--help", "--version"].contains(&option) || page.contains(option);
            assert!(known, "docs/cli.md lacks {option} of crisp {command:?}");
        }
    }
}

#[test]
fn every_document_is_in_an_index() {
    for (index, dir) in [("docs/README.md", "docs"), ("docs/decisions/README.md", "docs/decisions")] {
        let text = read(index);
        let pages = files(dir, "md").into_iter().filter(|page| Path::new(page).parent() == Some(Path::new(dir)));
        for page in pages.filter(|page| page != index) {
            let name = page.trim_start_matches(dir).trim_start_matches('/');
            assert!(text.contains(&format!("({name})")), "{index} does not list {name}");
        }
    }
}

#[test]
fn the_graph_of_crates_has_only_existing_dependencies() {
    let page = read("ARCHITECTURE.md");
    let (_, graph) = page.split_once("flowchart TD\n").unwrap();
    let (graph, _) = graph.split_once("```").unwrap();
    let crates: BTreeMap<_, _> = files("src", "toml")
        .into_iter()
        .map(|manifest| read(&manifest))
        .map(|text| (text.split('"').nth(1).unwrap().to_owned(), text))
        .collect();
    let name = |node: &str| node.trim().split('(').next().unwrap().to_owned();
    let mut edges = 0;
    for line in graph.lines() {
        let groups: Vec<Vec<String>> = line.split("-->").map(|group| group.split('&').map(name).collect()).collect();
        for pair in groups.windows(2) {
            for (from, to) in pair[0].iter().flat_map(|from| pair[1].iter().map(move |to| (from, to))) {
                let manifest = &crates[from];
                let found = [format!("\n{to}."), format!("\n{to} =")].iter().any(|line| manifest.contains(line));
                assert!(found, "{from} does not depend on {to}");
                edges += 1;
            }
        }
    }
    assert!(edges > 20, "{edges}");
}

#[test]
fn the_files_of_each_request_exist() {
    let page = read("ARCHITECTURE.md");
    let mut count = 0;
    for row in section(&page, "## How a request flows").lines().filter(|line| line.starts_with("| ")) {
        let files = row.split('|').nth(2).unwrap();
        for file in code(files).filter(|file| file.contains('/') || file.contains('.')) {
            let path = match file.strip_prefix('…') {
                Some(rest) => format!("src/daemon/runtime/{rest}"),
                None if file.starts_with("src/") => file.to_owned(),
                None => format!("src/daemon/{file}"),
            };
            assert!(root().join(&path).exists(), "ARCHITECTURE.md: there is no {path}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}
