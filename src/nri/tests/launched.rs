use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

fn script(directory: &Path, name: &str, content: &str) {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A plugin in a shell script: registers with an empty name, and answers the first two calls. Early
/// and repeated answers are dropped.
const PLUGIN: &str = r#"#!/bin/bash
request='\x0a\x1cnri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin'
printf '\0\0\0\2\0\0\0\x0a\0\0\0\x2e\0\0\0\1\1\0' >&3
printf "\0\0\0\2\0\0\0\x2e$request" >&3
head -c 60 <&3 >/dev/null
while sleep 0.05; do
  printf '\0\0\0\1\0\0\0\x0a\0\0\0\0\0\0\0\1\2\0' >&3 || exit
  printf '\0\0\0\1\0\0\0\x0a\0\0\0\0\0\0\0\3\2\0' >&3 || exit
done
"#;

#[tokio::test]
async fn a_program_is_a_plugin_by_its_file_name_and_is_killed_at_the_end() {
    let node = Node::start(settings());
    let directory = tempfile::tempdir().unwrap();
    let plugins = directory.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    script(&plugins, "10-shell", PLUGIN);
    script(&plugins, "bad", "#!/bin/sh\n");
    script(&plugins, "20-ends", "#!/bin/sh\n");
    node.roster.launch(&plugins, directory.path()).await;
    let state = node.roster.plugins();
    assert_eq!((node.names(), state[0].is_launched, state[0].is_active), (vec!["10-shell".to_owned()], true, true));
    node.host.wait_for("20-ends restart 1s").await;
    // It does not answer Shutdown.
    let begun = Instant::now();
    node.roster.shut_down().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(node.names().is_empty());
}

#[tokio::test]
async fn a_program_that_ends_is_started_again() {
    let node = Node::start(settings());
    let directory = tempfile::tempdir().unwrap();
    let count = directory.path().join("count");
    script(directory.path(), "10-ends", &format!("#!/bin/sh\necho >>{}\n", count.display()));
    node.roster.launch(directory.path(), directory.path()).await;
    wait("the second start", || std::fs::read(&count).is_ok_and(|starts| starts.len() >= 2)).await;
    let observed = node.host.observed.lock().clone();
    assert_eq!(observed[0], "10-ends restart 1s");
    assert!(node.names().is_empty());
}
