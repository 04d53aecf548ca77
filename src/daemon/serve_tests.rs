use std::os::unix::fs::PermissionsExt as _;

use config::RawConfig;

use super::*;

fn config(dir: &Path, listen: &str) -> Config {
    let mut raw = RawConfig {
        listen: dir.join(listen),
        root: dir.join("root"),
        state: dir.join("state"),
        ..RawConfig::default()
    };
    raw.shim.path = std::env::current_exe().unwrap();
    raw.resolve().unwrap()
}

#[test]
fn two_daemons_do_not_share_a_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = lock_directories(&config(dir.path(), "a.sock")).unwrap();
    let error = lock_directories(&config(dir.path(), "b.sock")).unwrap_err();
    assert!(matches!(error, ServeError::StateInUse(_)), "{error}");
    drop(first);
    assert!(lock_directories(&config(dir.path(), "b.sock")).is_ok());
}

#[test]
fn the_state_directory_is_private_unless_the_socket_is_in_it() {
    for (listen, expected) in [("a.sock", 0o700), ("state/a.sock", 0o711)] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), listen);
        let _lock = lock_directories(&config).unwrap();
        let mode = config.state.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{listen}");
    }
}
