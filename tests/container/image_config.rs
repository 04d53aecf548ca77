//! The effects of an image's configuration and files on a container, and those it must not have.

use std::fs;

use cri_api::v1;
use serde_json::{Value, json};
use tar::EntryType;
use tonic::Code;

use crate::support::client::{Asked, Client, Ended, Pod, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::{Layer, Tar, header};

/// Returns the name of the image for the case `what`.
fn name(what: &str) -> String {
    format!("crisp.test/{what}:1")
}

fn image(what: &str, key: &str, value: Value) -> Archive {
    Archive::new(&name(what)).with(key, value)
}

/// An image with other files than usual on top.
fn changed(what: &str, user: &str, fill: impl FnOnce(&mut Tar)) -> Archive {
    image(what, "User", json!(user)).on_top(Layer::new(fill))
}

/// Returns a container of the image for the case `what`, with that name.
fn of(what: &str, script: &str) -> v1::ContainerConfig {
    let mut config = container(what, &["/bin/busybox", "sh", "-c", script]);
    config.image.as_mut().unwrap().image = name(what);
    config
}

struct Images {
    daemon: Daemon,
    pod: Pod,
}

impl Images {
    fn new(archives: Vec<Archive>) -> Self {
        Self::on(TestEnv::new(), archives)
    }

    fn on(env: TestEnv, archives: Vec<Archive>) -> Self {
        archives.iter().for_each(|archive| env.import(archive));
        let daemon = Daemon::on(env);
        let pod = daemon.run_pod("pod");
        Self { daemon, pod }
    }

    fn client(&self) -> &Client {
        self.daemon.client()
    }

    fn create(&self, config: v1::ContainerConfig) -> Asked<String> {
        self.client().try_create(&self.pod, config)
    }

    fn run(&self, what: &str, script: &str) -> Ended {
        self.client().finish_config(&self.pod, of(what, script))
    }

    /// Checks that a container is refused because of its image, and leaves nothing.
    fn refused(&self, what: &str, words: &str) {
        let before = self.daemon.snapshot();
        let refusal = self.create(of(what, "true")).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{what}: {refusal:?}");
        assert!(refusal.message().contains(words), "{what}: {refusal:?} has no {words:?}");
        self.daemon.wait_until_like(&before);
    }
}

#[test]
fn users_out_of_range_or_unknown_are_refused_and_never_become_root() {
    let bad = [
        ("max", "2147483648", "2147483648"),
        ("wrap", "4294967296", "4294967296"),
        ("wrap-group", "0:4294967296", "4294967296"),
        ("named-group", "4294967296:root", "4294967296"),
        ("minus", "-1", "-1"),
        ("minus-group", "user:-1", "-1"),
        ("plus", "+0", "+0"),
        ("unknown", "nobody-here", "nobody-here"),
        ("unknown-group", "user:nobody-here", "nobody-here"),
        ("three", "user:user:user", "user:user:user"),
        ("space", " 0", "\" 0\""),
        ("hex", "0x0", "0x0"),
        ("empty-group", "user:", "user:"),
    ];
    let images = Images::new(bad.iter().map(|(what, user, _)| image(what, "User", json!(user))).collect());
    for (what, _, words) in bad {
        images.refused(what, words);
    }
    // The request takes precedence over the image's user.
    let mut config = of("three", "id -u");
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    config.metadata.as_mut().unwrap().name = "asked".into();
    let ended = images.client().finish_config(&images.pod, config);
    assert_eq!(ended.stdout, "1000\n");
}

#[test]
fn users_are_found_in_every_layer_of_the_image() {
    let there = |user: &str| format!("{user}:x:4321:4322::/home/of/{user}:\n");
    let elsewhere = there("elsewhere");
    let images = Images::new(vec![
        image("numbers", "User", json!("7:8")),
        image("lower", "User", json!("user")).on_top(Layer::new(|tar| tar.file("other", 0o644, b""))),
        changed("absolute", "elsewhere", |tar| {
            tar.file("users", 0o644, elsewhere.as_bytes());
            tar.symlink("etc/passwd", "/users");
        }),
        changed("climbing", "elsewhere", |tar| {
            tar.file("users", 0o644, elsewhere.as_bytes());
            tar.symlink("etc/passwd", "../../../../../users");
        }),
        changed("none", "5", |tar| tar.file("etc/.wh.passwd", 0o644, b"")),
    ]);
    let cases = [
        ("numbers", "7 8 /"),
        ("lower", "1000 1000 /home/user"),
        ("absolute", "4321 4322 /home/of/elsewhere"),
        ("climbing", "4321 4322 /home/of/elsewhere"),
        ("none", "5 0 /"),
    ];
    for (what, who) in cases {
        assert_eq!(images.run(what, "echo $(id -u) $(id -g) $HOME").stdout, format!("{who}\n"), "{what}");
    }
}

#[test]
fn account_files_that_are_not_regular_are_refused_and_the_hosts_are_never_read() {
    let env = TestEnv::new();
    let outside = env.dir().join("passwd");
    fs::write(&outside, "evil:x:0:0::/:\n").unwrap();
    let target = outside.display().to_string();
    let lines = "filler:x:1:1::/:\n".repeat(100_000);
    let odd = vec![
        changed("huge", "user", |tar| tar.file("etc/passwd", 0o644, lines.as_bytes())),
        changed("huge-group", "user", |tar| tar.file("etc/group", 0o644, lines.as_bytes())),
        changed("fifo", "user", |tar| tar.entry(header(EntryType::Fifo, "etc/passwd", 0o644), &[])),
        changed("device", "user", |tar| tar.device(EntryType::Char, "etc/passwd", (1, 5))),
        changed("directory", "user", |tar| {
            tar.file("etc/.wh.passwd", 0o644, b"");
            tar.dir("etc/passwd", 0o755);
        }),
        changed("loop", "user", |tar| tar.symlink("etc/passwd", "/etc/passwd")),
        changed("host", "evil", |tar| tar.symlink("etc/passwd", &target)),
        changed("climb", "evil", |tar| tar.symlink("etc/passwd", &format!("../../../../../..{target}"))),
        changed("proc", "root", |tar| tar.symlink("etc/passwd", "/proc/1/root/etc/passwd")),
        changed("gone", "user", |tar| tar.file("etc/.wh.passwd", 0o644, b"")),
        changed("all-gone", "user", |tar| tar.file("etc/.wh..wh..opq", 0o644, b"")),
    ];
    let images = Images::on(env, odd);
    for what in ["huge", "huge-group", "fifo", "device", "directory", "loop"] {
        images.refused(what, if what == "huge-group" { "etc/group" } else { "etc/passwd" });
    }
    for (what, user) in [("host", "evil"), ("climb", "evil"), ("proc", "root"), ("gone", "user"), ("all-gone", "user")]
    {
        images.refused(what, &format!("{user:?} is not in the image's /etc/passwd"));
    }
}

#[test]
fn variables_of_the_container_override_the_images_and_inject_nothing() {
    let env = json!([
        "PATH=/bin",
        "A=image",
        "A=image again",
        "B=image",
        "TERM=odd",
        "=nameless",
        "no value",
        "HOME=/x\nroot2::0:0::/:/bin/sh",
        "LINES=one\ntwo"
    ]);
    let images = Images::new(vec![image("env", "Env", env)]);
    let mut config = of("env", "echo $A $B $TERM $HOSTNAME; echo \"$LINES\"; cat /etc/passwd | wc -l");
    config.envs = vec![v1::KeyValue { key: "B".into(), value: b"container".to_vec() }];
    let ended = images.client().finish_config(&images.pod, config);
    assert!(ended.stdout.starts_with("image again container odd pod\none\ntwo\n2\n"), "{}", ended.stdout);
    let bundle = images.daemon.env.state().join("pods").join(&images.pod.id).join("containers").join(&ended.id);
    let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    let variables = config["process"]["env"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|v| v.as_str().unwrap().split('=').next().unwrap()).collect();
    assert_eq!(names, ["PATH", "HOSTNAME", "HOME", "A", "B", "TERM", "LINES"]);
}

#[test]
fn a_working_directory_of_the_image_is_absolute_and_created_inside_it() {
    let env = TestEnv::new();
    let outside = env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    let target = outside.display().to_string();
    let dir = |what: &str, dir: &str| image(what, "WorkingDir", json!(dir)).with_link("link", &target);
    let images = Images::on(
        env,
        vec![
            dir("linked", "/link/deep"),
            dir("climbing", "/../../../made"),
            dir("relative", "srv"),
            dir("upwards", "../srv"),
            dir("file", "/etc/passwd"),
        ],
    );
    assert_eq!(images.run("linked", "pwd").stdout, format!("{target}/deep\n"));
    assert_eq!(images.run("climbing", "pwd").stdout, "/made\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "a file was created on the host");
    images.refused("relative", "\"srv\"");
    images.refused("upwards", "\"../srv\"");
    let refusal = match images.create(of("file", "true")) {
        Ok(id) => images.client().start(&id).unwrap_err(),
        Err(refusal) => refusal,
    };
    assert!(refusal.message().contains("/etc/passwd"), "{refusal:?}");
}

#[test]
fn stop_signals_of_images_are_read_in_every_form_or_refused() {
    let forms = [
        ("full", "SIGQUIT", v1::Signal::Sigquit),
        ("short", "quit", v1::Signal::Sigquit),
        ("number", "3", v1::Signal::Sigquit),
        ("real-time", "SIGRTMIN+2", v1::Signal::Sigrtminplus2),
        ("empty", "", v1::Signal::Sigterm),
    ];
    let bad = [("no-signal", "SIGNOPE"), ("zero", "0"), ("high", "65"), ("negative", "-9")];
    let signals = forms.iter().map(|(what, text, _)| (what, text)).chain(bad.iter().map(|(what, text)| (what, text)));
    let images = Images::new(signals.map(|(what, text)| image(what, "StopSignal", json!(text))).collect());
    for (what, text) in bad {
        images.refused(what, text);
    }
    for (what, _, signal) in forms {
        let id = images.create(of(what, "true")).unwrap();
        assert_eq!(images.client().status(&id).stop_signal(), signal, "{what}");
    }
}

#[test]
fn labels_of_an_image_are_not_those_of_its_containers() {
    let labels =
        json!({ "io.kubernetes.container.name": "other", "io.containerd.image.config": "x", "run.oci": "evil" });
    let images = Images::new(vec![image("labels", "Labels", labels)]);
    let mut config = of("labels", "env");
    config.labels = [("own".to_owned(), "label".to_owned())].into();
    config.annotations = [("own".to_owned(), "annotation".to_owned())].into();
    let (labels, annotations) = (config.labels.clone(), config.annotations.clone());
    let ended = images.client().finish_config(&images.pod, config);
    assert_eq!((&ended.status.labels, &ended.status.annotations), (&labels, &annotations));
    let listed = images.client().containers().remove(0);
    assert_eq!((&listed.labels, &listed.annotations), (&labels, &annotations));
    assert!(!ended.stdout.contains("evil"));
    let dir = images.daemon.env.state().join("pods").join(&images.pod.id).join("containers").join(&ended.id);
    for file in ["config.json", "launch.json", "container.json"] {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        assert!(!text.contains("evil") && !text.contains("io.containerd"), "{file}: {text}");
    }
}

/// An image of busybox alone, without any directory that a container needs, and with links in their
/// place.
fn bare(what: &str, links: &[(&str, &str)]) -> Archive {
    let busybox = fs::read("/bin/busybox").unwrap();
    let mut archive = Archive::bare(Layer::new(|tar| {
        tar.file("bin/busybox", 0o755, &busybox);
        links.iter().for_each(|(name, target)| tar.symlink(name, target));
    }));
    archive.name = name(what);
    archive
}

#[test]
fn an_image_without_mount_points_gets_them_also_with_a_read_only_root() {
    let env = TestEnv::new();
    let outside = env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("hosts"), "of the host\n").unwrap();
    let target = outside.display().to_string();
    let hosts = format!("{target}/hosts");
    let (climb, mtab) = (format!("../../../../../..{hosts}"), format!("{target}/mtab"));
    let cases: [(&str, &[(&str, &str)]); 5] = [
        ("nothing", &[]),
        ("etc", &[("etc", &target)]),
        ("hosts", &[("etc/hosts", &hosts), ("etc/resolv.conf", "/no/such/file")]),
        ("climbing", &[("etc/hosts", &climb), ("etc/hostname", "hosts2")]),
        ("mtab", &[("etc/mtab", &mtab)]),
    ];
    let images = Images::on(env, cases.iter().map(|(what, links)| bare(what, links)).collect());
    for (what, _) in cases {
        let script = "busybox=/bin/busybox; $busybox cat /etc/hostname /proc/self/comm; \
            $busybox grep -c localhost /etc/hosts; $busybox touch /x || echo read-only; [ -c /dev/null ] && echo dev";
        let mut config = of(what, script);
        security(&mut config).readonly_rootfs = true;
        let ended = images.client().finish_config(&images.pod, config);
        let lines: Vec<_> = ended.stdout.lines().collect();
        assert_eq!(lines[..2], ["pod", "busybox"], "{what}: {ended:?}");
        assert_eq!(lines[3..], ["read-only", "dev"], "{what}: {ended:?}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{what}: a file was created on the host");
        assert_eq!(fs::read_to_string(outside.join("hosts")).unwrap(), "of the host\n");
    }
}
