//! What an operator does beside the daemon: check, explain, resize, demo.

mod check;
mod completions;
mod explain;
mod resize;
mod selftest;

use std::process::{Command, Output};

use crate::support::env::TestEnv;

impl TestEnv {
    /// A verb of `crisp` on this ground.
    pub(crate) fn verb(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = self.crisp(&[verb, "--config"]);
        command.arg(self.config()).args(arguments);
        command
    }

    /// What a verb prints that must succeed.
    pub(crate) fn verb_ok(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.verb(verb, arguments).output().unwrap();
        assert!(output.status.success(), "{verb} {arguments:?}: {}\n{}", errors(&output), text(&output));
        text(&output)
    }

    /// What a verb says on stderr that must fail, as the shell sees it.
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
