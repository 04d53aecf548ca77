//! Layers and configs that try to reach outside of their image, from a real pull to a running
//! container.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cri_api::v1;
use serde_json::json;
use tar::EntryType;
use tonic::{Code, Status};

use crate::support::client::{container, security};
use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, BOX};
use crate::support::layer_fixture::{Layer, Tar, header};
use crate::support::registry_fixture::Registry;

/// A directory beside the daemon's own, to detect changes to it.
struct Canary {
    dir: tempfile::TempDir,
    before: Vec<(String, u64, u32, i64, i64)>,
}

impl Canary {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("canary-").tempdir_in("/tmp").unwrap();
        fs::write(dir.path().join("file"), "sings").unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        let before = Self::look(dir.path());
        Self { dir, before }
    }

    fn look(dir: &Path) -> Vec<(String, u64, u32, i64, i64)> {
        let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.extend([dir.to_owned(), dir.join("dir")]);
        all.sort();
        let looks = |path: &std::path::PathBuf| {
            let meta = fs::symlink_metadata(path).unwrap();
            (path.display().to_string(), meta.nlink(), meta.mode(), meta.mtime(), meta.ctime_nsec())
        };
        all.iter().map(looks).collect()
    }

    fn check(&self, what: &str) {
        assert_eq!(Self::look(self.dir.path()), self.before, "{what}");
        assert_eq!(fs::read_to_string(self.dir.path().join("file")).unwrap(), "sings", "{what}");
    }
}

/// Pulls an image of busybox and this layer.
fn pull(daemon: &Daemon, registry: &Registry, name: &str, layer: Layer) -> Result<String, Status> {
    registry.push(&Archive::new("x").on_top(layer), name, "1");
    let image = format!("{}/{name}:1", registry.host());
    daemon.client().pull(&image).map(|_| image)
}

type Fill<'a> = Box<dyn FnOnce(&mut Tar) + 'a>;

#[test]
fn a_layer_that_reaches_outside_is_refused_and_changes_nothing() {
    let canary = Canary::new();
    let there = canary.dir.path().display().to_string();
    let up = format!("{}{there}", "../".repeat(12));
    let file = format!("{there}/file");
    let cases: Vec<(&str, Fill<'_>)> = vec![
        ("..", Box::new(|tar| tar.file(&format!("{up}/new"), 0o644, b"x"))),
        ("..", Box::new(|tar| tar.file("a/../../b", 0o644, b"x"))),
        ("..", Box::new(|tar| tar.dir(&format!("{up}/dir"), 0o777))),
        ("..", Box::new(|tar| tar.symlink(&format!("{up}/link"), "x"))),
        ("..", Box::new(|tar| tar.file(&format!("{up}/.wh.file"), 0o644, b""))),
        ("..", Box::new(|tar| tar.file(&format!("{up}/.wh..wh..opq"), 0o644, b""))),
        ("whiteout", Box::new(|tar| tar.file(".wh...", 0o644, b""))),
        ("hard link", Box::new(|tar| tar.hard_link("stolen", &file))),
        ("..", Box::new(|tar| tar.hard_link("stolen", &format!("{up}/file")))),
        (
            "",
            Box::new(|tar| {
                tar.symlink("way", &file);
                tar.hard_link("stolen", "way");
                tar.file("stolen", 0o777, b"x");
            }),
        ),
        (
            "root",
            Box::new(|tar| {
                tar.symlink(".", &there);
            }),
        ),
    ];
    let registry = Registry::start();
    let daemon = Daemon::start();
    for (number, (words, fill)) in cases.into_iter().enumerate() {
        let outcome = pull(&daemon, &registry, &format!("out-{number}"), Layer::new(fill));
        canary.check(words);
        if words.is_empty() {
            // A name that is used twice is valid.
            outcome.unwrap();
            continue;
        }
        let refusal = outcome.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{words}: {refusal:?}");
        assert!(refusal.message().contains(words), "{words}: {refusal:?}");
    }
    daemon.check_store(2);
    assert_eq!(daemon.print_in(BOX, "echo fine"), "fine\n");
}

#[test]
fn links_of_a_layer_are_resolved_inside_its_image() {
    let canary = Canary::new();
    let there = canary.dir.path().display().to_string();
    let up = format!("{}{there}", "../".repeat(12));
    let registry = Registry::start();
    let daemon = Daemon::start();
    for (number, target) in [&there, &up].into_iter().enumerate() {
        // A file behind a link is created where the link leads inside the image, or the layer is
        // refused.
        let layer = Layer::new(|tar| {
            tar.dir(there.trim_start_matches('/'), 0o755);
            tar.symlink("way", target);
            tar.file("way/file", 0o666, b"caged\n");
            tar.file("way/dir/.wh.x", 0o666, b"");
            tar.dir("way/dir", 0o777);
            tar.file("way/.wh..wh..opq", 0o666, b"");
        });
        match pull(&daemon, &registry, &format!("link-{number}"), layer) {
            Ok(image) => assert_eq!(daemon.print_in(&image, &format!("cat {there}/file")), "caged\n"),
            Err(refusal) => assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}"),
        }
        canary.check(target);
    }
}

#[test]
fn devices_of_a_layer_cannot_be_used_in_a_container() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    let layer = Layer::new(|tar| {
        tar.device(EntryType::Char, "mem", (1, 1));
        tar.device(EntryType::Char, "kmsg", (1, 11));
        tar.device(EntryType::Block, "disk", (254, 0));
        tar.device(EntryType::Block, "loop", (7, 0));
        tar.device(EntryType::Char, "fuse", (10, 229));
    });
    let image = pull(&daemon, &registry, "devices", layer).unwrap();
    let script = "for device in mem kmsg disk loop fuse; do
        head -c 1 /$device 2>&1 > /dev/null | grep -c -e 'not permitted' -e 'Permission denied'; done";
    assert_eq!(daemon.print_in(&image, script), "1\n1\n1\n1\n1\n");
}

#[test]
fn a_set_uid_file_works_except_with_no_new_privs() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    let busybox = fs::read("/bin/busybox").unwrap();
    let layer = Layer::new(|tar| {
        tar.file("bin/busybox-suid", 0o4755, &busybox);
        // No password: only the set-uid bit determines the result.
        tar.file("etc/passwd", 0o644, b"root::0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n");
    });
    let image = pull(&daemon, &registry, "suid", layer).unwrap();
    let run = |no_new_privs: bool| {
        daemon.print_with(&image, "/bin/busybox-suid su -c 'id -u' 2>&1; true", |config| {
            let security = security(config);
            security.run_as_user = Some(v1::Int64Value { value: 1000 });
            security.no_new_privs = no_new_privs;
        })
    };
    assert_eq!(run(false), "0\n");
    assert!(!run(true).contains("0\n"), "{}", run(true));
}

/// Returns the result of CreateContainer for an image.
fn create(daemon: &Daemon, pod: &str, image: &str) -> Result<String, Status> {
    let pod = daemon.run_pod(pod);
    let mut config = container("main", &["true"]);
    config.image.as_mut().unwrap().image = image.to_owned();
    daemon.client().try_create(&pod, config)
}

#[test]
fn users_that_overflow_are_never_root() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    for (number, user) in ["4294967296", "2147483648", "-1", "0:4294967296", "4294967296:user", "99999999999999999999"]
        .into_iter()
        .enumerate()
    {
        let name = format!("user-{number}");
        registry.push(&Archive::new("x").with("User", json!(user)), &name, "1");
        let image = format!("{}/{name}:1", registry.host());
        daemon.client().pull(&image).unwrap();
        let shown = daemon.client().image(&image).unwrap();
        assert!(shown.uid.is_none_or(|uid| uid.value > 0 || user.starts_with("0:")), "{user}: {shown:?}");
        let refusal = create(&daemon, &name, &image).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{user}: {refusal:?}");
        assert!(refusal.message().contains(user.split(':').find(|part| part.len() > 1).unwrap()), "{refusal:?}");
    }
}

#[test]
fn huge_account_files_are_not_read() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    for name in ["passwd", "group"] {
        let layer = Layer::new(|tar| tar.sparse(&format!("etc/{name}"), 2 << 30, 0, b"root:x:0:0::/:/bin/sh\n"));
        let archive = Archive::new("x").with("User", json!("user:extra")).on_top(layer);
        registry.push(&archive, name, "1");
        let image = format!("{}/{name}:1", registry.host());
        daemon.client().pull(&image).unwrap();
        let refusal = create(&daemon, name, &image).unwrap_err();
        assert!([Code::InvalidArgument, Code::ResourceExhausted].contains(&refusal.code()), "{refusal:?}");
        assert!(refusal.message().contains(name), "{refusal:?}");
    }
    let memory = crate::support::kernel_state::holding(daemon.pid()).rss;
    assert!(memory < 150 << 10, "the daemon uses {memory} KiB");
}

#[test]
fn labels_of_an_image_do_not_become_labels_of_a_container() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    let labels = json!({
        "io.kubernetes.pod.namespace": "kube-system", "io.kubernetes.container.name": "boss",
        "io.cri-containerd.kind": "sandbox", "crisp.privileged": "true", "mine": "image's",
    });
    registry.push(&Archive::new("x").with("Labels", labels), "labels", "1");
    let image = format!("{}/labels:1", registry.host());
    daemon.client().pull(&image).unwrap();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["true"]);
    config.image.as_mut().unwrap().image = image;
    config.labels.insert("mine".into(), "container's".into());
    let id = daemon.client().try_create(&pod, config).unwrap();
    let status = daemon.client().status(&id);
    assert_eq!(status.labels, [("mine".to_owned(), "container's".to_owned())].into());
    assert!(status.annotations.is_empty(), "{:?}", status.annotations);
    let label_selector = [("io.kubernetes.container.name".to_owned(), "boss".to_owned())].into();
    let filter = v1::ContainerFilter { label_selector, ..Default::default() };
    assert!(daemon.client().containers_like(filter).is_empty());
}

#[test]
fn a_layer_above_the_size_or_depth_limit_is_refused() {
    let registry = Registry::start();
    let daemon = Daemon::start();
    let cases: Vec<(&str, Fill<'_>)> = vec![
        // A header with a larger size than the data.
        (
            "",
            Box::new(|tar| {
                let mut long = header(EntryType::Regular, "long", 0o644);
                long.set_size(1 << 40);
                long.set_cksum();
                tar.raw(long.as_bytes());
            }),
        ),
        ("", Box::new(|tar| tar.raw(&[0xff; 512]))),
        // Attributes that control overlayfs must not be set.
        (
            "trusted.overlay",
            Box::new(|tar| {
                tar.xattr("trusted.overlay.redirect", b"/etc");
                tar.dir("redirected", 0o755);
            }),
        ),
    ];
    for (number, (words, fill)) in cases.into_iter().enumerate() {
        match pull(&daemon, &registry, &format!("odd-{number}"), Layer::new(fill)) {
            Err(refusal) => {
                assert_eq!(refusal.code(), Code::InvalidArgument, "{number}: {refusal:?}");
                assert!(refusal.message().contains("layer") || refusal.message().contains("tar"), "{refusal:?}");
            }
            // Ignoring the attribute is also correct.
            Ok(image) => {
                assert!(!words.is_empty(), "case {number} was accepted");
                assert_eq!(daemon.print_in(&image, "ls /redirected"), "");
            }
        }
    }
}
