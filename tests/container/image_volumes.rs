//! Images that are mounted in containers: read-only, complete, without a view of the host.

use std::fs;

use cri_api::v1;
use tar::EntryType;
use tonic::{Code, Status};

use crate::support::client::{Client, IDLE, Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, BOX};
use crate::support::kernel_state;
use crate::support::layer_fixture::{Layer, Tar, header};

pub(crate) const DATA: &str = "crisp.test/data:1";

/// An image that is data and nothing else.
fn data(name: &str, fill: impl FnOnce(&mut Tar)) -> Archive {
    let mut archive = Archive::bare(Layer::new(fill));
    archive.name = name.to_owned();
    archive
}

/// Three layers, of which each changes something of the one below.
pub(crate) fn data_in_layers() -> Archive {
    let bottom = |tar: &mut Tar| {
        tar.dir("sub", 0o755);
        tar.file("sub/a", 0o644, b"a\n");
        tar.file("sub/b", 0o644, b"b\n");
        tar.file("tool", 0o755, b"#!/bin/sh\necho it runs\n");
        tar.dir("place", 0o755);
        tar.symlink("out", "/etc");
        tar.symlink("climb", "../../../../sub");
    };
    data(DATA, bottom)
        .on_top(Layer::new(|tar| tar.file("sub/a", 0o644, b"new a\n")))
        .on_top(Layer::new(|tar| tar.file("sub/.wh.b", 0o644, b"")))
}

pub(crate) fn daemon_with(archives: &[Archive]) -> Daemon {
    let env = TestEnv::new();
    archives.iter().for_each(|archive| env.import(archive));
    Daemon::on(env)
}

pub(crate) fn image_mount(image: &str, sub_path: &str, at: &str) -> v1::Mount {
    v1::Mount {
        container_path: at.into(),
        readonly: true,
        image: Some(v1::ImageSpec {
            image: image.into(),
            user_specified_image: "as the user names it".into(),
            ..Default::default()
        }),
        image_sub_path: sub_path.into(),
        ..Default::default()
    }
}

fn with_mounts(name: &str, command: &[&str], mounts: Vec<v1::Mount>) -> v1::ContainerConfig {
    v1::ContainerConfig { mounts, ..container(name, command) }
}

pub(crate) fn forget_image(client: &Client, name: &str) {
    let image = Some(v1::ImageSpec { image: name.into(), ..Default::default() });
    client.image_call(|mut c| async move { c.remove_image(v1::RemoveImageRequest { image }).await }).unwrap();
}

/// The container's view of the mount at `path`.
fn mount_line(client: &Client, id: &str, path: &str) -> String {
    client.exec_script(id, &format!("grep ' {path} ' /proc/self/mountinfo"))
}

pub(crate) fn layers(daemon: &Daemon) -> usize {
    fs::read_dir(daemon.env.root().join("images/layers")).unwrap().count()
}

/// Checks that an invalid request is refused and leaves nothing.
pub(crate) fn refused(daemon: &Daemon, pod: &Pod, config: v1::ContainerConfig) -> Status {
    let before = daemon.snapshot();
    let refusal = daemon.client().try_create(pod, config).unwrap_err();
    daemon.wait_until_like(&before);
    refusal
}

#[test]
fn an_image_is_mounted_read_only_with_all_its_layers() {
    let daemon = daemon_with(&[data_in_layers()]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = kernel_state::mounts_under(daemon.env.dir());
    let id = client.run_config(&pod, with_mounts("main", &IDLE, vec![image_mount(DATA, "", "/mnt/data")]));
    assert_eq!(kernel_state::mounts_under(daemon.env.dir()), before, "nothing of it shows on the host");
    assert_eq!(client.exec_script(&id, "ls /mnt/data/sub; cat /mnt/data/sub/a"), "a\nnew a\n");
    assert_eq!(client.exec_script(&id, "/mnt/data/tool"), "it runs\n");
    for script in ["touch /mnt/data/x", "echo x > /mnt/data/sub/a", "rm /mnt/data/sub/a", "chmod 777 /mnt/data/tool"] {
        let write = client.exec(&id, &["sh", "-c", script]);
        assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{script}: {write:?}");
    }
    let line = mount_line(client, &id, "/mnt/data");
    assert!(line.contains(" ro,nosuid,nodev") && !line.contains("noexec"), "{line}");

    let status = client.status(&id);
    let used = status.mounts[0].image.clone().unwrap();
    assert!(used.image_ref.starts_with("sha256:"), "{used:?}");
    let asked = image_mount(DATA, "", "/mnt/data");
    let image = v1::ImageSpec { image_ref: used.image_ref, ..asked.image.clone().unwrap() };
    assert_eq!(status.mounts, [v1::Mount { image: Some(image), ..asked }]);
}

#[test]
fn an_image_of_one_layer_is_mounted_separately_for_each_container() {
    let daemon = daemon_with(&[data(DATA, |tar| {
        tar.file("file", 0o644, b"text\n");
        tar.entry(header(EntryType::Fifo, "fifo", 0o666), &[]);
        tar.device(EntryType::Char, "zero", (1, 5));
    })]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let run = |name| client.run_config(&pod, with_mounts(name, &IDLE, vec![image_mount(DATA, "", "/data")]));
    let (one, two) = (run("one"), run("two"));
    for id in [&one, &two] {
        assert_eq!(client.exec_script(id, "cat /data/file"), "text\n");
        assert_ne!(client.exec(id, &["head", "-c", "1", "/data/zero"]).code, 0, "devices do not work in it");
        assert!(mount_line(client, id, "/data").contains(" ro,nosuid,nodev"));
    }
    // Bytes written to the FIFO in one container do not arrive in the other.
    client.exec_script(&one, "echo secret <> /data/fifo > /data/fifo & sleep 100000 < /data/fifo > /dev/null 2>&1 &");
    assert!(client.try_exec(&two, &["cat", "/data/fifo"], 1).is_err(), "no writer has it open");
}

#[test]
fn a_directory_or_a_file_of_an_image_is_mounted_and_no_link_leads_out_of_it() {
    let daemon = daemon_with(&[data_in_layers()]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mounts = vec![
        image_mount(DATA, "sub", "/dir"),
        image_mount(DATA, "./sub//a", "/made/for/file"),
        image_mount(DATA, "climb", "/climb"),
        image_mount(DATA, ".", "/all"),
    ];
    let id = client.run_config(&pod, with_mounts("main", &IDLE, mounts));
    let script = "cat /dir/a /made/for/file /climb/a /all/sub/a; ls /dir /climb; [ -f /made/for/file ]";
    assert_eq!(client.exec_script(&id, script), format!("{}/climb:\na\n\n/dir:\na\n", "new a\n".repeat(4)));
    // The image has no /etc, whatever the host or the container has there.
    let refusal = refused(&daemon, &pod, with_mounts("out", &["true"], vec![image_mount(DATA, "out", "/out")]));
    assert!(refusal.message().contains("\"out\""), "{refusal:?}");
}

#[test]
pub(crate) fn invalid_image_mounts_are_refused_by_field_and_leave_nothing() {
    let daemon = daemon_with(&[data(DATA, |tar| {
        tar.file("file", 0o644, b"");
        tar.symlink("loop", "loop");
        tar.entry(header(EntryType::Fifo, "fifo", 0o666), &[]);
    })]);
    let pod = daemon.run_pod("pod");
    let usual = || image_mount(DATA, "", "/data");
    let cases = [
        (image_mount("crisp.test/never:1", "", "/data"), Code::NotFound, "config.mounts[1].image.image"),
        (image_mount(DATA, "no/such", "/data"), Code::InvalidArgument, "\"no/such\""),
        (image_mount(DATA, "file/below", "/data"), Code::InvalidArgument, "config.mounts[1].image_sub_path"),
        (image_mount(DATA, "loop", "/data"), Code::InvalidArgument, "config.mounts[1].image_sub_path"),
        (image_mount(DATA, "fifo", "/data"), Code::InvalidArgument, "neither a directory nor a file"),
        (image_mount(DATA, "../x", "/data"), Code::InvalidArgument, "config.mounts[1].image_sub_path"),
        (image_mount(DATA, "/file", "/data"), Code::InvalidArgument, "config.mounts[1].image_sub_path"),
        (v1::Mount { readonly: false, ..usual() }, Code::InvalidArgument, "config.mounts[1].readonly"),
        (v1::Mount { propagation: 2, ..usual() }, Code::InvalidArgument, "config.mounts[1].propagation"),
        (v1::Mount { host_path: "/srv".into(), ..usual() }, Code::InvalidArgument, "config.mounts[1].host_path"),
        (image_mount(DATA, "", "/proc"), Code::InvalidArgument, "/proc"),
        (image_mount(DATA, "", "/"), Code::InvalidArgument, "container_path"),
    ];
    for (mount, code, words) in cases {
        let refusal = refused(&daemon, &pod, with_mounts("main", &["true"], vec![image_mount(DATA, "", "/x"), mount]));
        assert_eq!(refusal.code(), code, "{refusal:?}");
        assert!(refusal.message().contains(words), "{refusal:?} has no {words:?}");
    }
    // Fails only during the mount: the mount point cannot be created in an image.
    let mounts = vec![image_mount(DATA, "", "/data"), image_mount(DATA, "", "/data/new")];
    let refusal = refused(&daemon, &pod, with_mounts("main", &["true"], mounts));
    assert!(refusal.message().contains("/data/new"), "{refusal:?}");
}

#[test]
fn image_mounts_and_other_mounts_are_stacked_by_path() {
    let daemon = daemon_with(&[data_in_layers()]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = daemon.env.dir().join("host");
    fs::create_dir(&host).unwrap();
    let host_mount =
        |at: &str| v1::Mount { container_path: at.into(), host_path: host.display().to_string(), ..Default::default() };
    let mounts = vec![
        host_mount("/image/place"),
        image_mount(DATA, "", "/image"),
        v1::Mount { recursive_read_only: true, ..image_mount(DATA, "sub", "/host/sub") },
        host_mount("/host"),
        image_mount(BOX, "etc", "/etc/box"),
    ];
    let id = client.run_config(&pod, with_mounts("main", &IDLE, mounts));
    client.exec_script(&id, "echo fine > /image/place/file");
    assert_eq!(client.exec_script(&id, "cat /host/file /host/sub/a; ls /etc/box"), "fine\nnew a\ngroup\npasswd\n");
    assert_ne!(client.exec(&id, &["touch", "/host/sub/x"]).code, 0);
    assert_eq!(fs::read_dir(host.join("sub")).unwrap().count(), 0, "on the host there is the empty place only");
}

#[test]
fn an_image_with_the_maximum_number_of_layers_is_mounted() {
    let number = 256;
    let layer = |n: usize| Layer::new(|tar| tar.file(&format!("file-{n}"), 0o644, format!("{n}\n").as_bytes()));
    let mut archive = data(DATA, |tar| tar.file("file-1", 0o644, b"1\n"));
    archive = (2..=number).fold(archive, |archive, n| archive.on_top(layer(n)));
    let daemon = daemon_with(&[archive]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let command = ["sh", "-c", "ls /data | wc -l; cat /data/file-1 /data/file-256"];
    let ended = client.finish_config(&pod, with_mounts("main", &command, vec![image_mount(DATA, "", "/data")]));
    assert_eq!(ended.stdout, format!("{number}\n1\n256\n"));
}

#[test]
fn a_removed_image_is_freed_when_the_container_that_mounts_it_is_removed() {
    let mut daemon = daemon_with(&[data_in_layers()]);
    let pod = daemon.run_pod("pod");
    let with_image = layers(&daemon);
    let mounts = || vec![image_mount(DATA, "sub", "/data")];
    let running = daemon.client().run_config(&pod, with_mounts("running", &IDLE, mounts()));
    let created = daemon.client().try_create(&pod, with_mounts("created", &["cat", "/data/a"], mounts())).unwrap();
    let image = daemon.client().status(&running).mounts[0].clone();
    forget_image(daemon.client(), DATA);
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.status(&running).mounts, [image]);
    assert_eq!(client.exec_script(&running, "cat /data/a"), "new a\n");
    client.start(&created).unwrap();
    client.wait_exited(&created);
    assert_eq!(client.lines(&created)[0].text, "new a");
    assert_eq!(layers(&daemon), with_image);
    client.remove(&created).unwrap();
    assert_eq!(layers(&daemon), with_image, "another container has them still");
    client.remove(&running).unwrap();
    assert_eq!(layers(&daemon), with_image - 3);
    let again = refused(&daemon, &pod, with_mounts("again", &["true"], mounts()));
    assert_eq!(again.code(), Code::NotFound, "{again:?}");
}
