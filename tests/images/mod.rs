//! Images: pull, import, list and remove.

mod broken_transfers;
mod cli;
mod concurrent_pulls;
mod crash;
mod disk_full;
mod formats;
mod hostile;
mod hostile_documents;
mod live_settings;
mod mirrors;
mod permission;
mod registries;
mod service;
mod slow_registries;
mod tls;
mod tokens;

use cri_api::v1;
use serde_json::Value;
use tonic::{Code, Response};

use crate::support::client::{Asked, Client, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program};
use crate::support::image_fixture::{Archive, BOX, import};
use crate::support::registry_fixture::{Nobody, Registry};

impl Client {
    pub(crate) fn pull(&self, image: &str) -> Asked<String> {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        let request = v1::PullImageRequest { image, ..Default::default() };
        self.image_call(|mut c| async move { c.pull_image(request).await }).map(|answer| answer.image_ref)
    }

    pub(crate) fn image(&self, image: &str) -> Option<v1::Image> {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        let request = v1::ImageStatusRequest { image, verbose: true };
        self.image_call(|mut c| async move { c.image_status(request).await }).unwrap().image
    }

    pub(crate) fn images(&self) -> Vec<v1::Image> {
        self.image_call(|mut c| async move { c.list_images(v1::ListImagesRequest::default()).await }).unwrap().images
    }

    /// Returns the `info` of a verbose status.
    pub(crate) fn image_info(&self, image: &str) -> Value {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        let request = v1::ImageStatusRequest { image, verbose: true };
        let answer = self.image_call(|mut c| async move { c.image_status(request).await }).unwrap();
        assert_eq!(answer.info.keys().collect::<Vec<_>>(), ["info"]);
        serde_json::from_str(&answer.info["info"]).unwrap()
    }

    pub(crate) fn images_like(&self, image: &str) -> Vec<v1::Image> {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        let request = v1::ListImagesRequest { filter: Some(v1::ImageFilter { image: image.clone() }) };
        let listed = self.image_call(|mut c| async move { c.list_images(request).await }).unwrap().images;
        let request = v1::StreamImagesRequest { filter: Some(v1::ImageFilter { image }) };
        assert_eq!(
            self.stream(request),
            [listed.clone()].into_iter().filter(|all| !all.is_empty()).collect::<Vec<_>>()
        );
        listed
    }

    /// Returns the images in the chunks of the stream.
    pub(crate) fn stream(&self, request: v1::StreamImagesRequest) -> Vec<Vec<v1::Image>> {
        let answer = self.image_call(|mut c| async move {
            let mut stream = c.stream_images(request).await?.into_inner();
            let mut chunks = Vec::new();
            while let Some(chunk) = stream.message().await? {
                chunks.push(chunk.images);
            }
            Ok(Response::new(chunks))
        });
        answer.unwrap()
    }

    pub(crate) fn filesystems(&self) -> v1::ImageFsInfoResponse {
        self.image_call(|mut c| async move { c.image_fs_info(v1::ImageFsInfoRequest {}).await }).unwrap()
    }

    pub(crate) fn remove_image(&self, image: &str) -> Asked<()> {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        self.image_call(|mut c| async move { c.remove_image(v1::RemoveImageRequest { image }).await }).map(drop)
    }
}

/// Runs a container of `image` and returns its output.
fn run(daemon: &Daemon, image: &str) -> String {
    let name = format!("pod-of-{}", image.replace(['/', ':', '@'], "-"));
    let pod = daemon.run_pod_with(&name, |config| config.hostname = "pod".into());
    let mut config = container("main", &["sh", "-c", "echo $WHICH"]);
    config.image.as_mut().unwrap().image = image.into();
    let ended = daemon.client().finish_config(&pod, config);
    daemon.client().remove_pod(&pod.id).unwrap();
    ended.stdout
}

#[test]
fn an_image_is_pulled_by_tag_and_by_digest() {
    let registry = Registry::start();
    let archive =
        |which: &str| Archive::new("x").with("Env", serde_json::json!(["PATH=/bin", format!("WHICH={which}")]));
    let first = registry.push(&archive("first"), "some/box", "1");
    let second = registry.push(&archive("second"), "some/box", "2");
    let daemon = Daemon::with_settings(&format!("[registries.{:?}]\nplain_http = true\n", registry.host()));
    let client = daemon.client();
    let tag = format!("{}/some/box:1", registry.host());
    let digest = format!("{}/some/box@{second}", registry.host());
    assert_eq!(client.image(&tag), None);

    let id = client.pull(&tag).unwrap();
    let image = client.image(&tag).unwrap();
    assert_eq!(image.id, id);
    assert!(id.starts_with("sha256:"));
    assert_eq!(image.repo_tags, std::slice::from_ref(&tag));
    assert_eq!(image.repo_digests, [format!("{}/some/box@{first}", registry.host())]);
    assert!(image.size > 100_000, "{}", image.size);
    assert_eq!(client.image(&id).unwrap(), image);
    assert_eq!(client.pull(&tag).unwrap(), id, "a second pull changes nothing");

    let by_digest = client.pull(&digest).unwrap();
    assert_ne!(by_digest, id);
    assert_eq!(client.image(&digest).unwrap().repo_digests, std::slice::from_ref(&digest));
    assert_eq!(client.images().len(), 3);
    assert_eq!(run(&daemon, &tag), "first\n");
    assert_eq!(run(&daemon, &digest), "second\n");
    assert_eq!(run(&daemon, &id), "first\n");
}

#[test]
fn a_moved_tag_is_followed() {
    let registry = Registry::start();
    let archive =
        |which: &str| Archive::new("x").with("Env", serde_json::json!(["PATH=/bin", format!("WHICH={which}")]));
    registry.push(&archive("old"), "box", "latest");
    let daemon = Daemon::with_settings(&format!("[registries.{:?}]\nplain_http = true\n", registry.host()));
    let name = format!("{}/box", registry.host());
    let old = daemon.client().pull(&name).unwrap();
    registry.push(&archive("new"), "box", "latest");
    let new = daemon.client().pull(&name).unwrap();
    assert_ne!(old, new);
    assert_eq!(daemon.client().image(&name).unwrap().id, new);
    assert_eq!(run(&daemon, &name), "new\n");
}

#[test]
fn an_image_that_the_registry_does_not_have_is_not_found() {
    let registry = Registry::start();
    registry.push(&Archive::new("x"), "box", "1");
    let daemon = Daemon::with_settings(&format!("[registries.{:?}]\nplain_http = true\n", registry.host()));
    for name in ["box:2", "other:1"] {
        let name = format!("{}/{name}", registry.host());
        let refusal = daemon.client().pull(&name).unwrap_err();
        assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
        assert!(refusal.message().contains(&name), "{refusal:?}");
    }
    let nobody = Nobody::new();
    let refusal = daemon.client().pull(&format!("{}/box:1", nobody.host())).unwrap_err();
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
}

#[test]
fn two_concurrent_pulls_of_one_image_both_succeed() {
    let registry = Registry::start();
    registry.push(&Archive::new("x"), "box", "1");
    let daemon = Daemon::with_settings(&format!("[registries.{:?}]\nplain_http = true\n", registry.host()));
    let name = format!("{}/box:1", registry.host());
    let socket = daemon.env.socket();
    let ids: Vec<String> = std::thread::scope(|threads| {
        let pulls: Vec<_> = (0..4).map(|_| threads.spawn(|| Client::connect(&socket).pull(&name).unwrap())).collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_removed_image_is_removed_with_all_its_names() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let image = client.image(BOX).unwrap();
    for _ in 0..2 {
        client.remove_image(&image.id).unwrap();
    }
    client.remove_image("crisp.test/never:1").unwrap();
    assert!(client.images().is_empty());
    assert_eq!(client.image(BOX), None);
    let pod = daemon.run_pod("pod");
    assert_eq!(client.try_create(&pod, container("main", &["true"])).unwrap_err().code(), Code::NotFound);
}

#[test]
fn a_removed_image_stays_usable_for_its_containers() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let created = daemon.client().create(&pod, "created", &["sh", "-c", "echo fine"]);
    let image = daemon.client().image(BOX).unwrap();
    daemon.client().remove_image(BOX).unwrap();
    daemon.restart();
    let client = daemon.client();
    assert!(client.images().is_empty());
    assert!(client.filesystems().image_filesystems[0].used_bytes.unwrap().value > 0, "its layers are kept");
    for status in [client.status(&id), client.status(&created)] {
        assert_eq!((status.image_id, status.image.unwrap().image), (image.id.clone(), BOX.to_owned()));
    }
    client.start(&created).unwrap();
    client.wait_exited(&created);
    assert_eq!(client.lines(&created)[0].text, "fine");
    assert_eq!(client.exec_script(&id, "cat /etc/passwd | head -n 1"), "root:x:0:0:root:/root:/bin/sh\n");
}

#[test]
fn images_survive_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start();
    let before = daemon.client().images();
    assert_eq!(before.len(), 1);
    daemon.restart();
    assert_eq!(daemon.client().images(), before);
}

#[test]
fn a_docker_archive_is_imported_like_an_oci_layout() {
    let env = TestEnv::new();
    let file = env.dir().join("box.tar");
    let archive = Archive::new("crisp.test/saved:2").with("Env", serde_json::json!(["PATH=/bin", "WHICH=saved"]));
    archive.write_docker_archive(&file);
    import(&file, &env.root());
    let daemon = Daemon::on(env);
    assert_eq!(daemon.client().image("crisp.test/saved:2").unwrap().repo_tags, ["crisp.test/saved:2"]);
    assert_eq!(run(&daemon, "crisp.test/saved:2"), "saved\n");
}

#[test]
fn an_import_refuses_an_invalid_archive_and_a_store_whose_daemon_does_not_answer() {
    let daemon = Daemon::start();
    let bad = daemon.env.dir().join("bad.tar");
    std::fs::write(&bad, "not an archive").unwrap();
    let layout = daemon.env.dir().join("layout");
    std::fs::create_dir(&layout).unwrap();
    Archive::new("crisp.test/more:1").write_layout(&layout);
    let free = TestEnv::new();
    for (root, file, words) in [(free.root(), &bad, "bad.tar"), (daemon.env.root(), &layout, "cannot connect to ")] {
        let output = std::process::Command::new(program("crisp"))
            .args(["image", "import", "--root"])
            .arg(root)
            .arg("--listen")
            .arg(free.dir().join("nobody.sock"))
            .arg(file)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(words), "{error}");
    }
}

#[test]
fn the_image_config_is_applied_to_a_container() {
    let env = TestEnv::new();
    let archive = Archive::new("crisp.test/wishes:1")
        .with("User", serde_json::json!("user"))
        .with("WorkingDir", serde_json::json!("/made/for/it"))
        .with("Entrypoint", serde_json::json!(["sh", "-c"]))
        .with("Cmd", serde_json::json!(["pwd; id -u; id -g; echo $HOME"]));
    env.import(&archive);
    let daemon = Daemon::on(env);
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &[]);
    config.image.as_mut().unwrap().image = "crisp.test/wishes:1".into();
    assert_eq!(daemon.client().finish_config(&pod, config.clone()).stdout, "/made/for/it\n1000\n1000\n/home/user\n");
    config.metadata.as_mut().unwrap().name = "other".into();
    config.args = vec!["echo other".into()];
    config.log_path = "other.log".into();
    assert_eq!(daemon.client().finish_config(&pod, config).stdout, "other\n");
}
