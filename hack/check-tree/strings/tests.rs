use std::path::Path;

use super::{draw, find, run, settings};
use crate::tests::Repository;

/// Returns the texts that are found in a source.
fn texts(path: &str, content: &str) -> Vec<String> {
    find(path, content).into_iter().map(|(_, text)| text).collect()
}

#[test]
fn error_texts_have_their_arguments_and_the_place_of_the_cause() {
    let source = r##"
        enum E {
            #[error("pod {0} is not ready")]
            NotReady(PodId),
            #[error("reading {}, then \
                \"{field}\"", path.display())]
            Read { path: PathBuf, field: u8, source: io::Error },
            #[error("opening")]
            Open(#[from] io::Error),
            #[error(transparent)]
            Other(#[from] Other),
            #[error("{0}: {1}")]
            OnlyValues(u8, u8),
        }
        #[cfg(test)]
        mod tests { #[error("of a test")] struct E; }
    "##;
    assert_eq!(
        texts("src/x/a.rs", source),
        ["error: pod {0} is not ready", "error: reading {path}, then \"{field}\": {cause}", "error: opening: {cause}",]
    );
}

#[test]
fn log_messages_have_level_module_and_fields() {
    let source = r#"
        fn f() {
            tracing::warn!(pod, error = &end as &dyn Error, %reason, "cannot stop; will retry");
            tracing::info!(target: "x", "ready");
            tracing::debug!(pod);
            assert!(error, "not logged");
        }
    "#;
    assert_eq!(
        texts("src/daemon/runtime/mod.rs", source),
        ["WARN daemon::runtime: cannot stop; will retry pod={} error={} reason={}", "INFO daemon::runtime: ready",]
    );
}

#[test]
fn help_has_the_command_and_the_option() {
    let source = r#"
        /// Not shown: the variant describes the command.
        #[derive(Debug, Args)]
        #[command(after_help = "After it.")]
        pub struct ImageArgs {
            /// Print less.
            ///
            /// Much less.
            #[arg(long, short)]
            pub(super) very_quiet: bool,
            /// Names.
            names: Vec<String>,
        }
        #[derive(clap::Subcommand)]
        enum Command {
            /// List images.
            Ls {
                /// As JSON.
                #[arg(long)]
                json: bool,
            },
            /// Remove images.
            Rm(RmArgs),
        }
        /// Not help.
        #[derive(Debug)]
        struct Other {
            /// Not help.
            field: u8,
        }
    "#;
    assert_eq!(
        texts("src/cli/image/mod.rs", source),
        [
            "crisp image --help: After it.",
            "crisp image --help: --very-quiet: Print less. Much less.",
            "crisp image --help: names: Names.",
            "crisp image --help: ls: List images.",
            "crisp image ls --help: --json: As JSON.",
            "crisp image --help: rm: Remove images.",
        ]
    );
}

#[test]
fn metrics_have_their_name() {
    let source = r#"
        fn write() {
            text.family("crisp_a", Kind::Gauge, "All of a.").sample(&[], 1);
            let all = "All of b.";
            text.family("crisp_b", Kind::Gauge, all);
            for (name, help, value) in [("crisp_c", "All of c.", c)] {}
        }
        families! {
            D: Gauge "container_d" ["cpu"] "All of d.";
        }
    "#;
    assert_eq!(
        texts("src/daemon/metrics/a.rs", source),
        [
            "# HELP crisp_a All of a.",
            "# HELP crisp_b All of b.",
            "# HELP crisp_c All of c.",
            "# HELP container_d All of d.",
        ]
    );
}

#[test]
fn settings_have_their_section_key_and_default() {
    let content =
        "# The whole file.\n\n# Socket.\nlisten = \"/a\"\n[log]\n# Least level,\n# or more.\nlevel = \"info\"\n";
    assert_eq!(
        settings::find(content),
        [
            (1, "crisp.toml: The whole file.".to_owned()),
            (3, "crisp.toml: listen = \"/a\": Socket.".to_owned()),
            (6, "crisp.toml: [log] level = \"info\": Least level, or more.".to_owned()),
        ]
    );
}

#[test]
fn a_draw_depends_on_the_seed_only_and_has_no_string_twice() {
    let list = super::list(Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap()).unwrap();
    assert!(list.len() > 800, "{} strings of crisp", list.len());
    let drawn = draw::draw(&list, 40, "6b337b4");
    assert_eq!(drawn, draw::draw(&list, 40, "6b337b4"));
    assert_ne!(drawn, draw::draw(&list, 40, "6b337b5"));
    let mut places: Vec<_> = drawn.iter().map(|string| (&string.path, string.line, &string.text)).collect();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), 40);
    assert_eq!(draw::draw(&list, list.len() + 1, "").len(), list.len());
}

#[test]
fn the_command_lists_with_places_and_draws_without() {
    let repository = Repository::new();
    repository.write("src/x/a.rs", "#[error(\"first\")]\nstruct A;\n");
    repository.write("src/x/tests.rs", "#[error(\"of a test\")]\nstruct A;\n");
    assert_eq!(run(repository.root(), &[]).unwrap(), "src/x/a.rs:1: error: first");
    assert_eq!(run(repository.root(), &["5".to_owned()]).unwrap(), "1. error: first");
    assert_eq!(run(repository.root(), &["1".to_owned(), "HEAD".to_owned()]).unwrap(), "1. error: first");
    assert!(run(repository.root(), &["1".to_owned(), "none".to_owned()]).is_err());
    assert!(run(repository.root(), &["many".to_owned()]).unwrap_err().contains("invalid number"));
}
