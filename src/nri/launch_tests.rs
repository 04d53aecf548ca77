use super::*;

fn write(directory: &Path, name: &str, content: &[u8], mode: u32) {
    let path = directory.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_file_with_a_bad_name_or_of_webassembly_does_not_keep_others_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write(path, "90-last", b"#!/bin/sh\n", 0o755);
    write(path, "10-first", b"x", 0o700);
    write(path, "10-wasm", b"\0asm\x01\0\0\0", 0o755);
    write(path, "bad", b"", 0o755);
    write(path, "1-short", b"", 0o755);
    write(path, "README", b"", 0o644);
    fs::create_dir(path.join("20-directory")).unwrap();
    let (programs, refused) = discover(path);
    let names: Vec<_> = programs.iter().map(|program| program.identity.to_string()).collect();
    assert_eq!(names, ["10-first", "90-last"]);
    let mut reasons: Vec<_> = refused.iter().map(ToString::to_string).collect();
    reasons.sort();
    let expected = [
        format!("plugin {}/1-short: plugin index \"1\": expected two digits", path.display()),
        format!("plugin {}/10-wasm: WebAssembly plugins are not supported", path.display()),
        format!("plugin {}/bad: file name \"bad\": expected INDEX-NAME, such as 10-example", path.display()),
    ];
    assert_eq!(reasons, expected);
    assert!(discover(&path.join("missing")).0.is_empty());
}

#[test]
fn the_configuration_with_the_index_is_read_before_that_without() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let identity: Identity = "10-a".parse().unwrap();
    assert_eq!(config(path, &identity).unwrap(), "");
    write(path, "a.conf", b"of the name", 0o600);
    assert_eq!(config(path, &identity).unwrap(), "of the name");
    write(path, "10-a.conf", b"of the file", 0o600);
    assert_eq!(config(path, &identity).unwrap(), "of the file");
    write(path, "10-a.conf", b"\xff", 0o600);
    assert!(matches!(config(path, &identity), Err(LaunchError::NoText(_))));
    let large = File::create(path.join("10-a.conf")).unwrap();
    large.set_len(CONFIG_MAX + 1).unwrap();
    assert!(matches!(config(path, &identity), Err(LaunchError::ConfigSize { .. })));
}

#[test]
fn a_configuration_that_is_a_fifo_is_refused_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.conf");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let refused = config(directory.path(), &"10-a".parse().unwrap());
    assert!(matches!(refused, Err(LaunchError::NoFile(_))), "{refused:?}");
}

#[tokio::test]
async fn a_plugin_has_its_connection_and_three_variables_and_nothing_else() {
    use tokio::io::AsyncReadExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("10-shell");
    write(directory.path(), "10-shell", b"#!/bin/sh\n/usr/bin/env >&3\nls /proc/self/fd >&3\nexec sleep 1000\n", 0o755);
    let mut started = start(&Program { path, identity: "10-shell".parse().unwrap() }).unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    while !seen.ends_with("3\n4\n") {
        let length = started.socket.read(&mut buffer).await.unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    for variable in ["NRI_PLUGIN_NAME=shell", "NRI_PLUGIN_IDX=10", "NRI_PLUGIN_SOCKET=3"] {
        assert!(seen.contains(variable), "{seen}");
    }
    // The shell sets PWD, OLDPWD, SHLVL and _ itself.
    let others = seen.lines().filter(|line| line.contains('='));
    let others: Vec<_> = others.filter(|line| !line.starts_with("NRI_PLUGIN_")).collect();
    assert!(others.iter().all(|line| ["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| line.starts_with(own))));
    // 4 is that of ls for the directory, and 10 that of the shell for the script.
    let descriptors = seen.lines().filter_map(|line| line.parse().ok());
    let others: Vec<u32> = descriptors.filter(|descriptor| ![0, 1, 2, 3, 4, 10].contains(descriptor)).collect();
    assert!(others.is_empty(), "{seen}");
    let pid = started.child.id().unwrap();
    started.child.kill().await.unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn restarts_pause_from_one_second_to_five_minutes() {
    let mut back_off = BackOff::default();
    let pauses: Vec<_> = (0..11).map(|_| back_off.pause(Duration::ZERO).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert_eq!(back_off.pause(STABLE).as_secs(), 1);
    assert_eq!(back_off.pause(Duration::ZERO).as_secs(), 2);
}
