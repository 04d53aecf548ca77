//! `crisp image`, with and without a daemon.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, scrape, seconds, wait_for};
use crate::support::image_fixture::{Archive, BOX, Blob, MANIFEST};

impl TestEnv {
    /// Returns a command `crisp image` for this environment's store.
    fn image(&self, arguments: &[&str]) -> Command {
        let mut command = self.crisp(&["image", "--config"]);
        command.arg(self.config()).args(arguments);
        command
    }

    fn image_ok(&self, arguments: &[&str]) -> String {
        let output = self.image(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn image_fails(&self, arguments: &[&str]) -> String {
        let output = self.image(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", errors(&output));
        errors(&output)
    }

    fn listed(&self) -> Value {
        serde_json::from_str(&self.image_ok(&["ls", "--json"])).unwrap()
    }

    /// Returns the number of the store's layers, and of those in progress.
    fn layers(&self) -> (usize, usize) {
        let count = |name: &str| fs::read_dir(self.root().join("images").join(name)).unwrap().count();
        (count("layers"), count("tmp"))
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn saved(env: &TestEnv, name: &str, which: &str) -> std::path::PathBuf {
    let file = env.dir().join(format!("{which}.tar"));
    let env = json!(["PATH=/bin", format!("WHICH={which}")]);
    Archive::new(name).with("Env", env).with_dir(which).write_docker_archive(&file);
    file
}

fn run(daemon: &Daemon, image: &str) -> String {
    // A separate log for each.
    let pod = daemon.run_pod(&image.replace(['/', ':'], "-"));
    let mut config = container("main", &["sh", "-c", "echo $WHICH"]);
    config.image.as_mut().unwrap().image = image.into();
    let ended = daemon.client().finish_config(&pod, config);
    daemon.client().remove_pod(&pod.id).unwrap();
    ended.stdout
}

#[test]
fn an_archive_is_imported_while_the_daemon_runs_and_containers_run_from_it() {
    let daemon = Daemon::start();
    let env = &daemon.env;
    let file = saved(env, "crisp.test/live:1", "live");
    let printed = env.image_ok(&["import", path(&file)]);
    assert!(printed.starts_with("sha256:") && printed.ends_with(" crisp.test/live:1\n"), "{printed}");
    assert_eq!(run(&daemon, "crisp.test/live:1"), "live\n");
    // Through a pipe, under another name, and compressed.
    let mut gzip = Command::new("gzip").arg("-c").arg(&file).stdout(Stdio::piped()).spawn().unwrap();
    let mut piped = env.image(&["import", "-", "--name", "crisp.test/piped:1", "--quiet"]);
    let output = piped.stdin(gzip.stdout.take().unwrap()).output().unwrap();
    gzip.wait().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(errors(&output), "");
    assert_eq!(run(&daemon, "crisp.test/piped:1"), "live\n");
    let output = env.image(&["import", "-"]).stdin(File::open(&file).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let mut rest = File::open(&file).unwrap();
    rest.seek(SeekFrom::Start(512)).unwrap();
    let output = env.image(&["import", "-"]).stdin(rest).output().unwrap();
    assert!(errors(&output).contains("stdin is a file that was partly read"), "{}", errors(&output));
    let error = env.image_fails(&["import", path(&env.dir().join("absent.tar"))]);
    assert!(error.contains("absent.tar") && error.contains("No such file"), "{error}");
    assert_eq!(env.layers().1, 0);
}

#[test]
fn an_export_of_one_daemon_is_imported_as_the_same_image_in_another_store() {
    let from = Daemon::start();
    let to = TestEnv::new();
    to.image_ok(&["rm", BOX]);
    let listed = from.env.listed();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    for (compress, name) in
        [(&[][..], "plain.tar"), (&["--compress", "gzip"], "gzip.tar"), (&["--compress", "zstd"], "zstd.tar")]
    {
        let file = to.dir().join(name);
        from.env.image_ok(&[&["export", "-o", path(&file)], compress, &[BOX]].concat());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        let printed = to.image_ok(&["import", path(&file)]);
        assert_eq!(printed, format!("{id} {BOX}\n"));
        assert_eq!(to.listed()[0]["tags"], listed[0]["tags"]);
        to.image_ok(&["rm", &id]);
        assert_eq!(to.layers(), (0, 0), "without containers the space is freed immediately");
    }
    // Directly from one store to the other, without a daemon.
    let to_daemon = Daemon::on(to);
    let mut export = from.env.image(&["export", BOX]).stdout(Stdio::piped()).spawn().unwrap();
    let mut import = to_daemon.env.image(&["import", "-"]);
    let output = import.stdin(export.stdout.take().unwrap()).output().unwrap();
    assert!(export.wait().unwrap().success() && output.status.success(), "{}", errors(&output));
    assert_eq!(to_daemon.env.listed()[0]["id"], *id);
    assert_eq!(run(&to_daemon, BOX), "\n");
    let error = from.env.image_fails(&["export", "-o", path(&from.env.dir().join("no.tar")), "crisp.test/never:1"]);
    assert!(error.contains("image \"crisp.test/never:1\" not found"), "{error}");
    assert!(!from.env.dir().join("no.tar").exists());
}

#[test]
fn an_unsupported_image_is_refused_with_the_error_of_the_daemon() {
    let daemon = Daemon::start();
    let (layout, archive) = (daemon.env.dir().join("layout"), Archive::new("crisp.test/odd:1"));
    archive.write_layout(&layout);
    let mut manifest: Value = serde_json::from_slice(&archive.pieces().manifest.bytes).unwrap();
    manifest["layers"][0]["mediaType"] = json!("text/odd");
    let odd = Blob::of(&manifest);
    fs::write(layout.join("blobs").join(odd.digest.replace(':', "/")), &odd.bytes).unwrap();
    let index = json!({ "schemaVersion": 2, "manifests": [odd.descriptor(MANIFEST)] });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let error = daemon.env.image_fails(&["import", path(&layout), "--name", "crisp.test/odd:1"]);
    assert!(
        error.contains("media type of a layer of the image is not supported") && !error.contains("not this version"),
        "{error}"
    );
}

#[test]
fn only_an_import_creates_a_store() {
    let env = TestEnv::new();
    let root = env.dir().join("elsewhere");
    fs::create_dir_all(root.join("images")).unwrap();
    for verb in [&["ls"][..], &["export", "-o", "/dev/null", BOX], &["rm", BOX], &["prune"]] {
        let error = env.image_fails(&[&["--root", path(&root)], verb].concat());
        assert!(error.contains("image store") && error.contains("elsewhere/images not found"), "{error}");
    }
    assert_eq!(fs::read_dir(root.join("images")).unwrap().count(), 0);
    let file = saved(&env, "crisp.test/new:1", "new");
    env.image_ok(&["--root", path(&root), "import", path(&file)]);
    assert_eq!(env.image_ok(&["--root", path(&root), "ls", "-q"]).lines().count(), 1);
}

#[test]
fn pruning_keeps_used_pinned_and_tagged_images() {
    let daemon = Daemon::with_settings("[image]\npinned = [\"crisp.test/pinned:1\"]\n");
    let env = &daemon.env;
    for which in ["pinned", "spare", "old"] {
        env.image_ok(&["import", path(&saved(env, &format!("crisp.test/{which}:1"), which))]);
    }
    // The tag moves, so the old image has no tag.
    env.image_ok(&["import", path(&saved(env, "crisp.test/new:1", "new")), "--name", "crisp.test/old:1"]);
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let names = || {
        let mut names: Vec<String> =
            env.listed().as_array().unwrap().iter().map(|image| image["tags"].to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 5);
    let would = env.image_ok(&["prune", "--dry-run"]);
    assert_eq!((would.lines().count(), names().len()), (1, 5));
    let output = env.image(&["prune"]).output().unwrap();
    assert!(errors(&output).starts_with("freed ") && errors(&output).ends_with("of 1 image\n"), "{}", errors(&output));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), would);
    assert_eq!(names().len(), 4);
    env.image_ok(&["prune", "--all"]);
    assert_eq!(names(), [format!("[{BOX:?}]"), "[\"crisp.test/pinned:1\"]".to_owned()]);
    assert_eq!(env.layers(), (2, 0));
    assert_eq!(daemon.client().exec_script(&id, "echo fine"), "fine\n");
}

#[test]
fn without_a_daemon_layers_of_running_containers_are_kept() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.kill9();
    let env = &daemon.env;
    env.image_ok(&["import", path(&saved(env, "crisp.test/more:1", "more"))]);
    let error = env.image_fails(&["prune", "--all"]);
    assert!(error.contains("cannot determine which images are in use") && error.contains("start it first"), "{error}");
    assert_eq!(env.listed().as_array().unwrap().len(), 2);
    env.image_ok(&["rm", BOX, "crisp.test/more:1"]);
    assert_eq!(env.layers().0, 2, "only a daemon frees layers");
    daemon.revive();
    assert_eq!(daemon.client().exec_script(&id, "cat /etc/passwd | head -n 1"), "root:x:0:0:root:/root:/bin/sh\n");
    assert_eq!(daemon.env.layers().0, 1, "the start freed the unused layers");
}

#[test]
fn images_are_listed_and_removed_with_and_without_a_daemon() {
    let mut daemon = Daemon::start();
    for turn in 0..2 {
        let env = &daemon.env;
        let file = saved(env, "crisp.test/two:1", "two");
        env.image_ok(&["import", path(&file)]);
        env.image_ok(&["import", path(&file), "--name", "crisp.test/two:2"]);
        let table = env.image_ok(&["ls"]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("NAME") && lines.len() == 4, "{table}");
        assert!(lines[1].starts_with(BOX), "{table}");
        assert!(lines[1].contains(" MiB") || lines[1].contains(" KiB"), "{table}");
        let ids = env.image_ok(&["ls", "-q"]);
        assert_eq!(ids.lines().count(), 2);
        let listed = env.listed();
        let two = listed.as_array().unwrap().iter().find(|image| image["tags"].as_array().unwrap().len() == 2).unwrap();
        assert_eq!(two["tags"], json!(["crisp.test/two:1", "crisp.test/two:2"]));
        assert_eq!(two["pinned"], json!(false));
        assert!(two["size"].as_u64().unwrap() > 100_000);
        let error =
            env.image_fails(&["rm", "--all-tags", "crisp.test/never:1", "crisp.test/two:2", "crisp.test/nor:1"]);
        assert!(error.contains("image not found: crisp.test/never:1, crisp.test/nor:1"), "{error}");
        assert_eq!(env.listed().as_array().unwrap().len(), 1, "the others went");
        assert_eq!(env.image(&["rm"]).output().unwrap().status.code(), Some(2));
        if turn == 0 {
            assert!(daemon.terminate().success());
        }
    }
}

#[test]
fn removing_a_tag_keeps_the_image_with_its_other_tags() {
    let mut daemon = Daemon::start();
    for turn in 0..2 {
        let env = &daemon.env;
        let file = saved(env, "crisp.test/two:1", "two");
        for tag in ["crisp.test/two:1", "crisp.test/two:2", "crisp.test/two:3"] {
            env.image_ok(&["import", path(&file), "--name", tag]);
        }
        let listed = env.listed();
        let two = listed.as_array().unwrap().iter().find(|image| image["tags"].as_array().unwrap().len() == 3).unwrap();
        let id = two["id"].as_str().unwrap().to_owned();
        assert_eq!(env.image_ok(&["rm", "crisp.test/two:1"]), "untagged crisp.test/two:1\n");
        assert_eq!(env.listed().as_array().unwrap().len(), 2);
        let removed = env.image_ok(&["rm", "--json", "--all-tags", "crisp.test/two:3"]);
        let removed: Value = serde_json::from_str(&removed).unwrap();
        let expected = json!([{ "id": id, "untagged": ["crisp.test/two:2", "crisp.test/two:3"], "removed": true }]);
        assert_eq!(removed, expected);
        assert_eq!(env.listed().as_array().unwrap().len(), 1);
        // With its last tag, and by its ID, an image is removed.
        for name in ["crisp.test/two:1", &id] {
            env.image_ok(&["import", path(&file)]);
            assert_eq!(env.image_ok(&["rm", name]), format!("untagged crisp.test/two:1\nremoved {id}\n"));
        }
        if turn == 0 {
            assert!(daemon.terminate().success());
        }
    }
}

#[test]
fn a_user_without_rights_gets_the_reason_once() {
    let env = TestEnv::new();
    let mut command = env.image(&["ls"]);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let output = command.output().unwrap();
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.matches("os error").count() <= 1 && error.matches("ermission denied").count() <= 2, "{error}");
}

/// Mounts a full file system at a path until it is dropped.
struct Full<'a>(&'a Path);

impl<'a> Full<'a> {
    fn new(path: &'a Path) -> Self {
        fs::create_dir(path).unwrap();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
        Self(path)
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        unmount(self.0, UnmountFlags::DETACH).ok();
    }
}

#[test]
fn an_export_to_a_full_disk_fails_with_its_path_and_leaves_no_file() {
    let mut daemon = Daemon::start();
    let place = daemon.env.dir().join("small");
    let full = Full::new(&place);
    for turn in 0..2 {
        let file = place.join("image.tar");
        let error = daemon.env.image_fails(&["export", "-o", path(&file), BOX]);
        assert!(error.contains("small/image.tar: No space left on device"), "{error}");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "{:?}", fs::read_dir(&place).unwrap().collect::<Vec<_>>());
        if turn == 0 {
            assert!(daemon.terminate().success());
        }
    }
    drop(full);
}

#[test]
fn an_import_or_export_is_cancelled_without_leftovers_when_the_client_exits() {
    let daemon = Daemon::start();
    let env = &daemon.env;
    // No process writes to the pipe, and then the client exits.
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::INT] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut import = env.image(&["import", "-"]).stdin(reader).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the import to start", seconds(20), || {
            let held = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
            held.flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("tmp/spool-")))
                .then_some(())
        });
        kill(i32::try_from(import.id()).unwrap(), signal);
        let status = import.wait().unwrap();
        assert_eq!(status.code(), (signal == rustix::process::Signal::INT).then_some(130));
        wait_for("the daemon to cancel", seconds(20), || {
            let held = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
            (!held
                .flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("tmp/spool-"))))
            .then_some(())
        });
        drop(writer);
    }
    assert_eq!(env.layers(), (1, 0));
    // An export into a pipe without a reader does not block the daemon, and its layers are freed
    // after it is cancelled.
    let (_reader, writer) = std::io::pipe().unwrap();
    let stdout = writer.try_clone().unwrap();
    let mut export = env.image(&["export", BOX]).stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the export to fill the pipe", seconds(20), || {
        let mut pipe = [PollFd::new(&writer, PollFlags::OUT)];
        (poll(&mut pipe, Some(&Timespec::default())).unwrap() == 0).then_some(())
    });
    assert_eq!(export.try_wait().unwrap(), None, "there is more to write");
    export.kill().unwrap();
    export.wait().unwrap();
    env.image_ok(&["rm", BOX]);
    wait_for("the layers to be freed", seconds(20), || (env.layers() == (0, 0)).then_some(()));
}

#[test]
fn imports_and_exports_are_counted_with_their_own_code_and_duration() {
    let daemon = Daemon::on(TestEnv::with_metrics(""));
    let env = &daemon.env;
    let (archive, bad) = (env.dir().join("whole.tar"), env.dir().join("bad.tar"));
    fs::write(&bad, "not an archive").unwrap();
    env.image_ok(&["export", BOX, "-o", path(&archive)]);
    env.image_ok(&["import", path(&archive)]);
    // An export of megabytes takes longer than its first response.
    let quick = "\ncrisp_request_duration_seconds_bucket{rpc=\"Export\",le=\"0.0005\"} 0\n";
    assert!(scrape(&env.metrics()).contains(quick), "{}", scrape(&env.metrics()));
    env.image_fails(&["import", path(&bad)]);
    env.image_fails(&["export", "none.example/x:1", "-o", path(&bad)]);
    let page = scrape(&env.metrics());
    for (sample, value) in [
        ("crisp_requests_total{rpc=\"Import\",code=\"OK\"}", 1),
        ("crisp_requests_total{rpc=\"Import\",code=\"INVALID_ARGUMENT\"}", 1),
        ("crisp_request_duration_seconds_count{rpc=\"Import\"}", 2),
        ("crisp_request_duration_seconds_count{rpc=\"Export\"}", 2),
        ("crisp_requests_total{rpc=\"Export\",code=\"OK\"}", 1),
        ("crisp_requests_total{rpc=\"Export\",code=\"NOT_FOUND\"}", 1),
    ] {
        assert!(page.contains(&format!("\n{sample} {value}\n")), "no {sample} {value} in:\n{page}");
    }
}
