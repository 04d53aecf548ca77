//! Tests of the commands for operators: check, explain, resize, demo.

mod arguments;
mod check;
mod completions;
mod explain;
mod inside;
mod json;
mod resize;
mod selftest;

use std::process::{Command, Output};

use crate::support::env::TestEnv;

impl TestEnv {
    /// Returns a command of `crisp` with the configuration of this environment.
    pub(crate) fn verb(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = self.crisp(&[verb, "--config"]);
        command.arg(self.config()).args(arguments);
        command
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn verb_ok(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.verb(verb, arguments).output().unwrap();
        assert!(output.status.success(), "{verb} {arguments:?}: {}\n{}", errors(&output), text(&output));
        text(&output)
    }

    /// Runs a command that must fail with exit code 1, and returns its stderr.
    pub(crate) fn verb_fails(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.verb(verb, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb} {arguments:?}: {}\n{}", errors(&output), text(&output));
        errors(&output)
    }
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
