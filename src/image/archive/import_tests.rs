use std::ops::ControlFlow;

use super::*;
use crate::archive::progress::{Progress, ignore_progress};
use crate::limits::Limits;
use crate::registry::endpoint::Registries;
use crate::test_support::{Made, Tar, gzip};
use model::ErrorClass as _;

struct TestEnv {
    store: Store,
    directory: tempfile::TempDir,
}

impl TestEnv {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), Registries::default(), Limits::default()).unwrap();
        Self { store, directory }
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn made() -> Made {
    Made::new(&[Tar::default().file("a", b"1").end(), Tar::default().file("b", b"2").end()], gzip)
}

fn index(made: &Made, annotations: serde_json::Value) -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": Digest::of(&made.manifest), "size": made.manifest.len(), "annotations": annotations,
    }]}))
    .unwrap()
}

fn blob_path(blob: &[u8]) -> String {
    format!("blobs/sha256/{}", Digest::of(blob).hex())
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

fn oci_files(made: &Made, annotations: serde_json::Value) -> Files {
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    files.push(("index.json".to_owned(), index(made, annotations)));
    files.extend(made.blobs().chain([&made.manifest]).map(|blob| (blob_path(blob), blob.clone())));
    files
}

/// Long names would not fit a plain header.
fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    files.iter().fold(Tar::default(), |tar, (name, data)| tar.pax(&[("path", name.as_bytes())]).file("x", data)).end()
}

#[test]
fn an_oci_layout_is_imported_from_a_directory_and_from_an_archive() {
    let (env, made) = (TestEnv::new(), made());
    let files = oci_files(&made, serde_json::json!({"org.opencontainers.image.ref.name": "a.b/c:1"}));
    for (name, content) in &files {
        env.write(&format!("layout/{name}"), content);
    }
    let images = env.store.import(&env.directory.path().join("layout"), None, &ignore_progress).unwrap();
    assert_eq!((images.len(), &images[0].id), (1, &made.id()));
    assert_eq!(images[0].repo_tags, ["a.b/c:1"]);
    assert_eq!(images[0].repo_digests, [format!("a.b/c@{}", Digest::of(&made.manifest))]);
    for packed in [archive(&files), gzip(&archive(&files)), zstd::encode_all(&archive(&files)[..], 1).unwrap()] {
        let env = TestEnv::new();
        let path = env.write("image.tar", &packed);
        let images = env.store.import(&path, Some("other"), &ignore_progress).unwrap();
        assert_eq!(images[0].repo_tags, ["docker.io/library/other:latest"]);
        assert_eq!(env.store.lowers(&images[0]).unwrap().len(), 2);
        assert!(std::fs::read_dir(env.directory.path().join("store/tmp")).unwrap().next().is_none());
    }
}

#[test]
fn a_bare_tag_is_not_used_as_a_name() {
    let (env, made) = (TestEnv::new(), made());
    let files = oci_files(&made, serde_json::json!({"org.opencontainers.image.ref.name": "latest"}));
    let path = env.write("image.tar", &archive(&files));
    let image = env.store.import(&path, None, &ignore_progress).unwrap().remove(0);
    assert!(image.repo_tags.is_empty());
    assert_eq!(env.store.find(image.id.as_str()), Some(image));
}

#[test]
fn a_docker_archive_is_imported_with_linked_layers() {
    let tar = Tar::default().file("a", b"1").end();
    let made = Made::new(&[tar.clone(), tar.clone()], |tar| tar.to_vec());
    let manifest = serde_json::json!([{
        "Config": "c.json", "RepoTags": ["busybox:1"], "Layers": ["one/layer.tar", "two/layer.tar"],
    }]);
    let bytes = Tar::default()
        .file("one/layer.tar", &tar)
        .symlink("two/layer.tar", "../one/layer.tar")
        .file("c.json", &made.config)
        .file("manifest.json", &serde_json::to_vec(&manifest).unwrap())
        .end();
    let env = TestEnv::new();
    let path = env.write("image.tar", &bytes);
    let image = env.store.import(&path, None, &ignore_progress).unwrap().remove(0);
    assert_eq!(image.repo_tags, ["docker.io/library/busybox:1"]);
    assert!(image.repo_digests.is_empty());
    assert_eq!(env.store.lowers(&image).unwrap().len(), 2);
    assert_eq!(env.store.find("busybox:1"), Some(image));
}

#[test]
fn archives_with_wrong_or_missing_content_are_refused() {
    let made = made();
    let wrong = |change: &dyn Fn(&mut Files)| {
        let env = TestEnv::new();
        let mut files = oci_files(&made, serde_json::json!({}));
        change(&mut files);
        let path = env.write("image.tar", &archive(&files));
        let outcome = env.store.import(&path, None, &ignore_progress);
        assert!(env.store.list().is_empty());
        outcome.unwrap_err()
    };
    let position =
        |files: &[(String, Vec<u8>)], blob: &[u8]| files.iter().position(|f| f.0 == blob_path(blob)).unwrap();
    let config = wrong(&|files| {
        let at = position(files, &made.config);
        files[at].1.push(b' ');
    });
    assert!(matches!(config, ImportError::Digest { .. }), "{config:?}");
    let layer = wrong(&|files| {
        let at = position(files, &made.layers[0]);
        files[at].1[30] ^= 1;
    });
    assert!(matches!(layer, ImportError::Unpack { source: UnpackError::Blob { .. }, .. }), "{layer:?}");
    let missing = wrong(&|files| {
        let at = position(files, &made.layers[1]);
        files.remove(at);
    });
    assert!(matches!(missing, ImportError::Missing { .. }), "{missing:?}");
    let nothing = wrong(&|files| files.clear());
    assert!(matches!(nothing, ImportError::Unknown(_)), "{nothing:?}");
}

#[test]
fn a_layout_directory_cannot_point_outside_itself() {
    let (env, made) = (TestEnv::new(), made());
    for (name, content) in oci_files(&made, serde_json::json!({})) {
        env.write(&format!("layout/{name}"), &content);
    }
    let blob = env.directory.path().join("layout").join(blob_path(&made.layers[0]));
    let outside = env.write("outside", &made.layers[0]);
    std::fs::remove_file(&blob).unwrap();
    std::os::unix::fs::symlink(&outside, &blob).unwrap();
    let error = env.store.import(&env.directory.path().join("layout"), None, &ignore_progress).unwrap_err();
    assert!(matches!(error, ImportError::Missing { .. }), "{error:?}");
}

#[test]
fn a_name_for_several_images_or_by_digest_is_refused() {
    let (env, made) = (TestEnv::new(), made());
    let path = env.write("image.tar", &archive(&oci_files(&made, serde_json::json!({}))));
    let digest = format!("a@{}", Digest::of(b""));
    assert!(matches!(env.store.import(&path, Some(&digest), &ignore_progress), Err(ImportError::Name(_))));
    assert_eq!(
        env.store.import(&path.join("no"), None, &ignore_progress).unwrap_err().kind(),
        model::ErrorKind::Internal
    );
    let absent = env.directory.path().join("absent");
    assert_eq!(env.store.import(&absent, None, &ignore_progress).unwrap_err().kind(), model::ErrorKind::NotFound);
}

#[test]
fn an_import_reports_progress_and_can_be_cancelled() {
    let (env, made) = (TestEnv::new(), made());
    let path = env.write("image.tar", &archive(&oci_files(&made, serde_json::json!({}))));
    let seen = Mutex::new(Vec::new());
    let watch = |progress: Progress| {
        let mut seen = seen.lock();
        seen.push(progress);
        if seen.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    assert!(matches!(env.store.import(&path, None, &watch), Err(ImportError::GivenUp)));
    assert!(env.store.list().is_empty());
    assert!(std::fs::read_dir(env.directory.path().join("store/tmp")).unwrap().next().is_none());
    seen.lock().clear();
    let watch = |progress: Progress| {
        seen.lock().push(progress);
        ControlFlow::Continue(())
    };
    env.store.import(&path, None, &watch).unwrap();
    let total = made.layers.iter().map(|layer| layer.len() as u64).sum();
    assert_eq!(*seen.lock().last().unwrap(), Progress { bytes: total, total, layers: 2 });
}

#[test]
fn an_archive_is_read_from_a_pipe_with_a_slow_writer() {
    let (env, made) = (TestEnv::new(), made());
    let bytes = gzip(&archive(&oci_files(&made, serde_json::json!({}))));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
    let image = std::thread::scope(|threads| {
        threads.spawn(move || {
            for part in bytes.chunks(500) {
                std::io::Write::write_all(&mut writer, part).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        env.store.import(&path, Some("a.b/c:1"), &ignore_progress).unwrap().remove(0)
    });
    assert_eq!((&image.id, &image.repo_tags[..]), (&made.id(), &["a.b/c:1".to_owned()][..]));
}

#[test]
fn an_import_from_an_idle_pipe_can_be_cancelled_and_a_device_is_refused() {
    let env = TestEnv::new();
    let (reader, _writer) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
    let outcome = env.store.import(&path, None, &|_| ControlFlow::Break(()));
    assert!(matches!(outcome, Err(ImportError::Read { .. } | ImportError::GivenUp)), "{outcome:?}");
    let outcome = env.store.import(Path::new("/dev/zero"), None, &ignore_progress);
    assert!(matches!(outcome, Err(ImportError::NoFile(_))), "{outcome:?}");
}

#[test]
fn many_layers_are_unpacked_at_once_and_stay_in_order() {
    let tars: Vec<_> = (0..12).map(|at| Tar::default().file(&format!("f{at}"), &[at; 5000]).end()).collect();
    let made = Made::new(&tars, gzip);
    let env = TestEnv::new();
    let path = env.write("image.tar", &archive(&oci_files(&made, serde_json::json!({}))));
    let image = env.store.import(&path, Some("x"), &ignore_progress).unwrap().remove(0);
    let lowers = env.store.lowers(&image).unwrap();
    for (at, lower) in lowers.iter().rev().enumerate() {
        let file = env.store.layers_dir().join(lower.directory()).join(format!("f{at}"));
        assert_eq!(std::fs::read(file).unwrap(), [u8::try_from(at).unwrap(); 5000]);
    }
}

/// Returns the peak memory of this process so far, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_config_that_many_images_share_is_in_memory_once() {
    let env = TestEnv::new();
    let entries: Vec<_> = (0..300).map(|_| serde_json::json!({"Config": "c", "Layers": []})).collect();
    let manifest = serde_json::to_vec(&entries).unwrap();
    let bytes = Tar::default().file("c", &vec![b' '; 4 << 20]).file("manifest.json", &manifest).end();
    let path = env.write("image.tar", &bytes);
    drop(bytes);
    let before = peak();
    env.store.import(&path, None, &ignore_progress).unwrap_err();
    assert!(peak() < before + 200, "{} MiB, {before} before", peak());
}

#[test]
fn a_package_of_too_many_images_is_refused() {
    let (env, made) = (TestEnv::new(), made());
    let entries: Vec<_> = (0..1025).map(|_| serde_json::json!({"Config": "c", "Layers": []})).collect();
    let docker = Tar::default().file("manifest.json", &serde_json::to_vec(&entries).unwrap()).end();
    let entry = |at: u32| {
        let digest = Digest::of(&at.to_le_bytes());
        serde_json::json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1})
    };
    let entries: Vec<_> = (0..1025).map(entry).collect();
    let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
    let mut files = oci_files(&made, serde_json::json!({}));
    files[1].1 = serde_json::to_vec(&index).unwrap();
    for bytes in [docker, archive(&files)] {
        let error = env.store.import(&env.write("image.tar", &bytes), None, &ignore_progress).unwrap_err();
        assert!(matches!(error, ImportError::TooMany { what: "images", limit: 1024, .. }), "{error:?}");
    }
}

#[test]
fn long_names_of_files_in_an_archive_are_not_kept() {
    let env = TestEnv::new();
    let path = env.directory.path().join("image.tar");
    for (length, count, many) in [(1_000_000, 300, false), (4000, 5000, true)] {
        let mut to = zstd::Encoder::new(File::create(&path).unwrap(), 1).unwrap();
        for at in 0..count {
            let name = format!("{at}{}", "a".repeat(length));
            let member = Tar::default().pax(&[("path", name.as_bytes())]).file("x", b"").0;
            std::io::Write::write_all(&mut to, &member).unwrap();
        }
        std::io::Write::write_all(&mut to, &[0; 1024]).unwrap();
        to.finish().unwrap();
        let before = peak();
        let error = env.store.import(&path, None, &ignore_progress).unwrap_err();
        assert_eq!(matches!(error, ImportError::TooMany { .. }), many, "{error:?}");
        assert!(peak() < before + 200, "{} MiB, {before} before", peak());
    }
}

#[test]
fn an_import_waits_for_the_writer_of_a_named_pipe_and_can_be_cancelled() {
    let (env, made) = (TestEnv::new(), made());
    let bytes = archive(&oci_files(&made, serde_json::json!({})));
    let path = env.directory.path().join("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    let error = env.store.import(&path, None, &|_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, ImportError::GivenUp), "{error:?}");
    let to = path.clone();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        // Opening a pipe only for writing waits for a reader.
        std::fs::write(to, bytes).unwrap();
    });
    let images = env.store.import(&path, Some("a.b/c:1"), &ignore_progress).unwrap();
    assert_eq!(images[0].id, made.id());
    writer.join().unwrap();
}
