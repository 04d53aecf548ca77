use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;
use crate::archive::progress::{Progress, ignore_progress};
use crate::store::test_support::{add, base, names, open, top};
use crate::test_support::{Head, Tar};
use model::ErrorClass as _;

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn export(store: &Store, names: &[&str], compress: Compress) -> Vec<u8> {
    let mut archive = Vec::new();
    store.export(&texts(names), compress, &mut archive, &ignore_progress).unwrap();
    archive
}

fn import(into: &Path, archive: &[u8]) -> (Store, Vec<Arc<Image>>) {
    let store = open(&into.join("store"));
    let file = into.join("archive.tar");
    std::fs::write(&file, archive).unwrap();
    let images = store.import(&file, None, &ignore_progress).unwrap();
    (store, images)
}

/// Returns path, mode, owner, time, size and content or target of all files of an image's layers,
/// lowest first.
fn files(store: &Store, image: &Image) -> Vec<Vec<String>> {
    fn list(directory: &Path, into: &mut Vec<String>) {
        for name in names(directory) {
            let path = directory.join(&name);
            let stat = std::fs::symlink_metadata(&path).unwrap();
            let content = match stat.file_type() {
                kind if kind.is_symlink() => format!("{:?}", std::fs::read_link(&path)),
                kind if kind.is_dir() => {
                    list(&path, into);
                    String::new()
                }
                _ => format!("{:?}", std::fs::read(&path)),
            };
            into.push(format!("{name} {:o} {} {} {} {content}", stat.mode(), stat.uid(), stat.nlink(), stat.mtime()));
        }
    }
    let one = |lower: model::LayerNumber| {
        let mut all = Vec::new();
        list(&store.layers_dir().join(lower.directory()), &mut all);
        all
    };
    store.lowers(image).unwrap().into_iter().rev().map(one).collect()
}

fn rich() -> Vec<u8> {
    let head = Head { kind: b'5', mode: 0o1711, mtime: 77, ..Head::default() };
    Tar::default().entry("d", &head, b"").file("d/a", b"content").link("hard", "d/a").symlink("soft", "d/a").end()
}

#[test]
fn an_export_is_imported_as_the_same_image() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    let image = add(&store, &[base(), rich(), top("1")], "a.b/x:1");
    add(&store, &[base(), rich(), top("1")], "c.d/y:2");
    let image = store.find(image.id.as_str()).unwrap();
    for compress in [Compress::No, Compress::Gzip, Compress::Zstd] {
        let archive = export(&store, &[image.id.as_str()], compress);
        assert_eq!(archive, export(&store, &[image.id.as_str()], compress), "the same images, the same archive");
        let elsewhere = tempfile::tempdir().unwrap();
        let (other, images) = import(elsewhere.path(), &archive);
        let [same] = &images[..] else { panic!("{images:?}") };
        assert_eq!((&same.id, &same.repo_tags, &same.user), (&image.id, &image.repo_tags, &image.user));
        assert_eq!(other.config(same).unwrap(), store.config(&image).unwrap());
        assert_eq!(same.chain, image.chain);
        assert_eq!(files(&other, same), files(&store, &image));
        assert_eq!(other.blob(&same.id).unwrap(), store.blob(&image.id).unwrap());
        assert!(names(&directory.path().join("store/tmp")).is_empty());
        // And from there on to a third.
        let further = tempfile::tempdir().unwrap();
        let (_, images) = import(further.path(), &export(&other, &["a.b/x:1"], compress));
        assert_eq!((&images[0].id, &images[0].repo_tags[..]), (&image.id, &["a.b/x:1".to_owned()][..]));
    }
}

#[test]
fn shared_layers_are_written_once_and_docker_finds_its_own_list() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let one = add(&store, &[base(), top("1")], "a.b/x:1");
    let two = add(&store, &[base(), top("2"), base()], "a.b/x:2");
    let archive = export(&store, &["a.b/x:1", "a.b/x:2", "a.b/x:1"], Compress::No);
    let mut reader = tar::Archive::new(&archive[..]);
    let (mut blobs, mut docker, mut index) = (Vec::new(), Vec::new(), Vec::new());
    for entry in reader.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        match name.as_str() {
            "manifest.json" => drop(entry.read_to_end(&mut docker).unwrap()),
            "index.json" => drop(entry.read_to_end(&mut index).unwrap()),
            "oci-layout" => {}
            _ => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                assert_eq!(name, blob_name(&Digest::of(&content)));
                blobs.push(name);
            }
        }
    }
    let total = blobs.len();
    blobs.sort();
    blobs.dedup();
    assert_eq!((blobs.len(), total), (3 + 2 * 2, 7), "three layers, two configs, two manifests");
    let docker: serde_json::Value = serde_json::from_slice(&docker).unwrap();
    let of = |image: &Image| {
        docker.as_array().unwrap().iter().find(|entry| entry["Config"] == blob_name(&image.id)).unwrap().clone()
    };
    assert_eq!(of(&one)["RepoTags"], json!(["a.b/x:1"]));
    assert_eq!(of(&two)["Layers"].as_array().unwrap().len(), 3);
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let annotations = &index["manifests"][0]["annotations"];
    assert!(annotations["io.containerd.image.name"].as_str().unwrap().starts_with("a.b/x:"));
    assert!(["1", "2"].contains(&annotations["org.opencontainers.image.ref.name"].as_str().unwrap()));
}

#[test]
fn an_image_without_a_tag_is_imported_without_a_tag() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    let image = add(&store, &[base()], "a.b/x:1");
    add(&store, &[top("other")], "a.b/x:1");
    let archive = export(&store, &[&image.id.hex()[..12]], Compress::No);
    let elsewhere = tempfile::tempdir().unwrap();
    let (_, images) = import(elsewhere.path(), &archive);
    assert_eq!((&images[0].id, images[0].repo_tags.len()), (&image.id, 0));
}

#[test]
fn an_image_that_cannot_be_exported_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base(), top("1")], "a.b/x:1");
    let attempt = |names: &[&str]| store.export(&texts(names), Compress::No, &mut io::sink(), &ignore_progress);
    assert!(matches!(attempt(&[]), Err(ExportError::Nothing)));
    let error = attempt(&["a.b/x:1", "a.b/none"]).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::NotFound);
    assert!(error.to_string().contains("a.b/none"), "{error}");
    let layer = store.layers_dir().join(store.lowers(&image).unwrap()[0].to_string());
    let tar_split = std::fs::read(layer.join("tar-split.zst")).unwrap();
    let mut wrong = tar_split.clone();
    wrong[tar_split.len() / 2] ^= 1;
    std::fs::write(layer.join("tar-split.zst"), wrong).unwrap();
    let error = attempt(&["a.b/x:1"]).unwrap_err();
    assert!(matches!(&error, ExportError::Changed { .. } | ExportError::Tape { .. }), "{error:?}");
    assert!(error.to_string().contains("a.b/x:1") && error.to_string().contains("layer sha256:"), "{error}");
    std::fs::remove_file(layer.join("tar-split.zst")).unwrap();
    let error = attempt(&["a.b/x:1"]).unwrap_err();
    assert!(matches!(&error, ExportError::Tape { .. }), "{error:?}");
    std::fs::write(layer.join("tar-split.zst"), tar_split).unwrap();
    attempt(&["a.b/x:1"]).unwrap();
    std::fs::write(directory.path().join("blobs").join(image.id.hex()), "{}").unwrap();
    assert!(matches!(attempt(&["a.b/x:1"]), Err(ExportError::Config(_))));
}

#[test]
fn a_layer_record_without_a_length_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"));
    let image = add(&store, &[base()], "a.b/x:1");
    let archive = export(&store, &["a.b/x:1"], Compress::No);
    drop(store);
    let record = directory.path().join("store/layers/1/layer.json");
    let mut value: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    assert!(value.as_object_mut().unwrap().remove("tar_bytes").is_some());
    std::fs::write(&record, value.to_string()).unwrap();
    let store = open(&directory.path().join("store"));
    assert_eq!(export(&store, &[image.id.as_str()], Compress::No), archive);
}

/// Accepts a number of bytes, then fails.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_target_disk_and_a_cancelled_export_return_different_errors() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    add(&store, &[base(), top("1")], "a.b/x:1");
    for compress in [Compress::No, Compress::Gzip, Compress::Zstd] {
        for room in (0..8000).step_by(300) {
            let outcome = store.export(&texts(&["a.b/x:1"]), compress, &mut Full(room), &ignore_progress);
            if let Err(error) = outcome {
                assert!(matches!(error, ExportError::Write(_)), "{error:?}");
                assert_eq!(error.kind(), model::ErrorKind::Exhausted);
            }
        }
        let mut calls = 0;
        let seen = sync::Mutex::new(&mut calls);
        let watch = |_: Progress| {
            **seen.lock() += 1;
            std::ops::ControlFlow::Break(())
        };
        let outcome = store.export(&texts(&["a.b/x:1"]), compress, &mut io::sink(), &watch);
        assert!(matches!(outcome, Err(ExportError::GivenUp)), "{outcome:?}");
        assert!(names(&directory.path().join("tmp")).is_empty());
    }
}

#[test]
fn layers_stay_while_they_are_exported() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    add(&store, &[base(), top("1")], "a.b/x:1");
    let watch = |_: Progress| {
        assert!(store.prune(|_| false).unwrap().images.is_empty(), "an image being exported is in use");
        store.remove("a.b/x:1").unwrap();
        std::ops::ControlFlow::Continue(())
    };
    // The config is read last, after it was removed; no layer may be removed during the export.
    let outcome = store.export(&texts(&["a.b/x:1"]), Compress::No, &mut io::sink(), &watch);
    assert!(matches!(outcome, Err(ExportError::Disk(_))), "{outcome:?}");
    assert!(names(&store.layers_dir()).is_empty(), "freed once the export is over");
}
