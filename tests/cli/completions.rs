//! Help, completions and manual pages.

use std::process::Command;

use super::{errors, text};
use crate::support::harness::program;

fn crisp(arguments: &[&str]) -> String {
    let output = Command::new(program("crisp")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
    text(&output)
}

#[test]
fn completions_of_every_shell_contain_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = crisp(&["completions", shell]);
        for word in ["explain", "resize", "dry-run", "check"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let checked = Command::new("bash").arg("-nc").arg(crisp(&["completions", "bash"])).output().unwrap();
    assert!(checked.status.success(), "{}", errors(&checked));
}

#[test]
fn examples_are_indented_below_their_heading() {
    for verb in ["completions", "resize"] {
        let help = crisp(&[verb, "--help"]);
        let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{verb}: {help}"));
        let examples: Vec<&str> = examples.lines().take_while(|line| !line.is_empty()).collect();
        assert!(examples.len() > 1 && examples.iter().all(|line| line.starts_with("  ")), "{verb}: {help}");
    }
}

#[test]
fn a_directory_for_manual_pages_that_cannot_be_written_is_named() {
    let output = Command::new(program("crisp")).args(["man", "/proc/x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).starts_with("crisp: writing manual pages to /proc/x: No such file"), "{}", errors(&output));
}

#[test]
fn every_visible_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    crisp(&["man", pages.to_str().unwrap()]);
    for page in
        ["crisp.1", "crisp-check.1", "crisp-explain.1", "crisp-resize.1", "crisp-demo.1", "crisp-image-import.1"]
    {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    assert!(!pages.join("crisp-selftest-cleanup.1").exists());
}

#[test]
fn help_lists_all_commands_but_the_hidden_ones() {
    let help = crisp(&["--help"]);
    for verb in ["serve", "check", "demo", "explain", "resize", "image", "completions", "man"] {
        assert!(help.contains(&format!("  {verb}")), "{verb}: {help}");
    }
    assert!(!help.contains("selftest-cleanup") && !help.contains("demo-workload"), "{help}");
}
