use std::fs;
use std::path::Path;

use crate::{Finding, check, git};

const BODY: &str = "The reason of the change.";

/// A repository with one clean file and a commit, in which the rules for commits begin.
pub(crate) struct Repository {
    dir: tempfile::TempDir,
}

impl Repository {
    pub(crate) fn new() -> Self {
        let repository = Self { dir: tempfile::tempdir().unwrap() };
        repository.git(&["init", "--quiet"]);
        repository.write("README.md", "# crisp\n\nThe shim reaps the process.\n");
        repository.write("hack/check-tree/commits.rs", "");
        repository.commit("tests: Begin", "");
        repository
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    fn git(&self, arguments: &[&str]) {
        git(self.root(), &[&["-c", "user.name=tests", "-c", "user.email=tests@localhost"], arguments].concat())
            .unwrap();
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let file = self.root().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
        self.git(&["add", path]);
    }

    fn commit(&self, subject: &str, body: &str) {
        self.git(&["commit", "--quiet", "--allow-empty", "-m", subject, "-m", body]);
    }

    fn findings(&self) -> Vec<String> {
        check(self.root()).unwrap().iter().map(Finding::to_string).collect()
    }
}

/// Writes `content` and expects exactly one finding at `line` that contains `rule`.
#[track_caller]
fn assert_finding(path: &str, content: &str, line: usize, rule: &str) {
    let repository = Repository::new();
    repository.write(path, content);
    let findings = repository.findings();
    let [finding] = &findings[..] else { panic!("expected one finding: {findings:?}") };
    let start = if line == 0 { format!("{path}: ") } else { format!("{path}:{line}: ") };
    assert!(finding.starts_with(&start) && finding.contains(rule), "{finding}");
}

#[track_caller]
fn assert_clean(path: &str, content: &str) {
    let repository = Repository::new();
    repository.write(path, content);
    assert_eq!(repository.findings(), [""; 0]);
}

#[test]
fn a_word_for_people_is_found_in_comments_strings_function_names_and_documents() {
    assert_finding("src/x/a.rs", "fn f() {}\n// The shim is\n// told to stop.\n", 3, "told");
    assert_finding("src/x/a.rs", "/// Fails if nobody listens.\nfn f() {}\n", 1, "nobody");
    assert_finding("src/x/a.rs", "fn f() -> &'static str {\n    \"the peers differ\"\n}\n", 2, "the peers");
    assert_finding("src/x/a.rs", "const A: char = '\"';\nconst B: &str = r#\"a \"quoted\" whoever\"#;\n", 2, "whoever");
    assert_finding("src/x/a.rs", "#[test]\nfn the_daemon_says_more() {}\n", 2, "says");
    assert_finding("docs/a.md", "# Title\n\nThe daemon asks\nthe shim.\n", 3, "asks");
    assert_finding("docs/a.md", "| a | b |\n|---|---|\n| one | is no number |\n", 3, "is no");
    assert_finding("a.toml", "[a]\nb = 1 # of its own accord\n", 2, "of its own accord");
    assert_finding("hack/a", "#!/bin/sh\n# Somebody else.\n", 2, "somebody");
    assert_finding("hack/a", "#!/bin/sh\necho \"look at this\"\n", 2, "look at");
}

#[test]
fn a_sentence_without_a_subject_is_found() {
    assert_finding("src/x/a.rs", "// What the kernel has.\n", 1, "sentence begins with \"what\"");
    assert_finding("src/x/a.rs", "/// Returns the limit. Whose limit is\n/// in the record.\nfn f() {}\n", 1, "whose");
    assert_finding("src/x/a.rs", "#[error(\"what was written is lost\")]\nstruct A;\n", 1, "what");
    assert_finding("docs/a.md", "A list:\n\n- What is removed\n", 3, "what");
    assert_clean("src/x/a.rs", "/// Returns what was written.\nfn f() {}\n");
}

#[test]
fn code_and_plain_uses_are_not_found() {
    assert_clean(
        "docs/a.md",
        "Run `who am i`.\n\n    tell nobody\n\n```sh\nwho\n```\n\n[link](https://localhost/who)\n",
    );
    assert_clean(
        "src/x/a.rs",
        "/// There is no limit; it is no longer set.\nfn f(who: &str) { g(\"nobody\", \"{who} is {told:?}\") }\n",
    );
    assert_clean("src/x/a.rs", "fn f<'a>(c: char) -> &'a str { if c == '\\'' { r\"\" } else { \"\" } }\n");
    assert_clean("proto/a.md", "Nobody.\n");
}

#[test]
fn long_lines_of_prose_are_found() {
    let long = "word ".repeat(25);
    assert_finding("docs/a.md", &long, 1, "125 columns");
    assert_finding("src/x/a.rs", &format!("fn f() {{}}\n    // {long}\n"), 2, "columns");
    assert_finding("a.toml", &format!("# {long}\n"), 1, "columns");
    assert_clean("docs/a.md", &format!("| {long} |\n\n[{long}](a.md)\n\n    {long}\n"));
}

#[test]
fn a_long_architecture_document_is_found() {
    assert_clean("ARCHITECTURE.md", &"line\n".repeat(150));
    assert_finding("ARCHITECTURE.md", &"line\n".repeat(151), 0, "151 lines, at most 150");
}

#[test]
fn large_files_and_folders_are_found() {
    assert_clean("src/x/a.rs", &format!("{}{}", "// Comment.\n\n".repeat(100), "f();\n".repeat(400)));
    assert_finding("src/x/a.rs", &"f();\n".repeat(401), 0, "401 lines of code");
    let repository = Repository::new();
    for number in 0..17 {
        repository.write(&format!("src/x/{number}.rs"), "");
    }
    repository.write("src/x/lib.rs", "");
    assert_eq!(repository.findings(), ["src/x: 17 sources, at most 16"]);
}

#[test]
fn a_cycle_between_modules_is_found() {
    let repository = Repository::new();
    repository.write("src/x/a.rs", "use crate::b::B;\n");
    repository.write(
        "src/x/b/c.rs",
        "use crate::{\n    d::{self, a},\n    e,\n};\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
    );
    repository.write("src/x/d.rs", "// crate::b\nfn f() { \"crate::a\"; }\n");
    assert_eq!(repository.findings(), [""; 0]);
    repository.write("src/x/e.rs", "fn f() { crate::a::f(); }\n");
    assert_eq!(repository.findings(), ["src/x: cycle of modules: a -> b -> e -> a"]);
}

#[test]
fn a_lower_layer_of_the_daemon_that_uses_an_upper_one_is_found() {
    assert_clean("src/daemon/grpc/a.rs", "use crate::store::Record;\n");
    assert_finding("src/daemon/store/a.rs", "use crate::convert::Field;\n", 0, "store must not use convert");
}

#[test]
fn a_dependency_between_crates_that_is_not_allowed_is_found() {
    let manifest = |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}");
    let repository = Repository::new();
    repository.write("src/sys/Cargo.toml", &manifest("sys", ""));
    repository
        .write("src/daemon/Cargo.toml", &manifest("daemon", "\n[dependencies]\nsys.workspace = true\nlibc = \"1\"\n"));
    repository.write("src/model/Cargo.toml", &manifest("model", "\n[dev-dependencies]\nsys.workspace = true\n"));
    assert_eq!(repository.findings(), [""; 0]);
    repository.write("src/model/Cargo.toml", &manifest("model", "\n[dependencies]\nsys = { workspace = true }\n"));
    repository.write("src/new/Cargo.toml", &manifest("new", ""));
    let [edge, unknown] = &repository.findings()[..] else { panic!() };
    assert!(edge.starts_with("src/model/Cargo.toml:5: model must not depend on sys"), "{edge}");
    assert!(unknown.starts_with("src/new/Cargo.toml: new is missing in"), "{unknown}");
}

#[test]
fn commits_are_checked_after_the_one_that_adds_the_rule() {
    let repository = Repository::new();
    assert_eq!(repository.findings(), [""; 0]);
    repository.commit("tests: Add a thing", BODY);
    assert_eq!(repository.findings(), [""; 0]);
    repository.commit("tests: Add another thing", "");
    let [finding] = &repository.findings()[..] else { panic!() };
    assert!(finding.ends_with("the body must state the reason of the change: tests: Add another thing"), "{finding}");
    repository.git(&["tag", "v1"]);
    assert_eq!(repository.findings(), [""; 0]);
    repository.commit(&"x".repeat(73), BODY);
    assert!(repository.findings()[0].contains("subject has 73 characters, at most 72"));
}

#[test]
fn commits_of_a_shallow_clone_are_checked_after_its_oldest() {
    let repository = Repository::new();
    repository.commit("tests: No body", "");
    repository.commit("tests: Oldest of the clone", "");
    repository.commit("tests: Newest of the clone", "");
    let target = tempfile::tempdir().unwrap();
    let url = format!("file://{}", repository.root().display());
    git(target.path(), &["clone", "--quiet", "--depth=2", &url, "clone"]).unwrap();
    let findings = check(&target.path().join("clone")).unwrap();
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(finding.rule.ends_with("Newest of the clone"), "{finding}");
}
