//! The state that a crash leaves at each step, and its recovery when the store is opened again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use sync::Mutex;

use crate::archive::progress::ignore_progress;
use crate::digest::Digest;
use crate::record::Image;
use crate::store::Store;
use crate::store::crash_points::at_each_step;
use crate::store::test_support::{add, base, names, open, top, try_open, walk};
use crate::test_support::Tar;

/// Copies of a store, one for each step of an operation.
struct Crashes {
    directory: tempfile::TempDir,
    at: Vec<(&'static str, PathBuf)>,
}

/// Runs `work` on the store at `root`, and copies the disk at every step.
fn crashes<T>(root: &Path, work: impl FnOnce() -> T) -> (Crashes, T) {
    let directory = tempfile::tempdir().unwrap();
    let at = Arc::new(Mutex::new(Vec::new()));
    let (into, seen, from) = (directory.path().to_owned(), at.clone(), root.to_owned());
    let looking = at_each_step(root, move |step| {
        let mut seen = seen.lock();
        let copy = into.join(seen.len().to_string());
        assert!(Command::new("cp").arg("-a").arg(&from).arg(&copy).status().unwrap().success());
        seen.push((step, copy));
    });
    let done = work();
    drop(looking);
    let at = std::mem::take(&mut *at.lock());
    (Crashes { directory, at }, done)
}

impl Crashes {
    fn steps(&self) -> Vec<&'static str> {
        self.at.iter().map(|(step, _)| *step).collect()
    }

    /// Opens each copy; after the sweep it must contain only the files of its images.
    fn check(&self, judge: impl Fn(&str, &Store)) {
        assert!(self.directory.path().is_dir());
        for (step, copy) in &self.at {
            let store = open(copy);
            store.remove_unused().unwrap();
            whole(step, copy, &store);
            judge(step, &store);
            drop(store);
            // The removals are durable.
            let again = open(copy);
            again.remove_unused().unwrap();
            whole(step, copy, &again);
            judge(step, &again);
        }
    }
}

/// Checks that every image is usable, and that nothing else is in the store.
fn whole(step: &str, root: &Path, store: &Store) {
    let images = store.list();
    for image in &images {
        let lowers = store.lowers(image).unwrap();
        for lower in &lowers {
            assert!(!names(&store.layers_dir().join(lower.directory())).is_empty(), "{step}: {lower} is empty");
        }
        assert!(image.id.matches(&store.blob(&image.id).unwrap()), "{step}");
        let mut out = std::io::sink();
        store.export(&[image.id.to_string()], crate::Compress::No, &mut out, &ignore_progress).unwrap();
    }
    let mut layers: Vec<Digest> = images.iter().flat_map(|image| image.chain.clone()).collect();
    layers.sort();
    layers.dedup();
    assert_eq!(names(&store.layers_dir()).len(), layers.len(), "{step}: unreferenced layers");
    assert_eq!(names(&root.join("images")).len(), images.len(), "{step}: unreferenced records");
    let blobs: usize = images.iter().map(|image| 1 + usize::from(image.manifest.is_some())).sum();
    assert_eq!(names(&root.join("blobs")).len(), blobs, "{step}: unreferenced blobs");
    assert!(names(&root.join("tmp")).is_empty(), "{step}: {:?}", names(&root.join("tmp")));
    let (usage, real) = (store.usage(), walk(root));
    assert_eq!((usage.bytes, usage.inodes), (real.bytes, real.inodes), "{step}");
}

fn tags(store: &Store) -> Vec<String> {
    let mut tags: Vec<String> = store.list().iter().flat_map(|image| image.repo_tags.clone()).collect();
    tags.sort();
    tags
}

#[test]
fn a_crash_at_any_step_of_adding_leaves_the_old_or_the_new_state() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    add(&store, &[base(), top("1")], "a.b/x:1");
    let (crashes, _) = crashes(directory.path(), || add(&store, &[base(), top("2"), top("3")], "a.b/y:1"));
    for step in [
        "layer begun",
        "layer unpacked",
        "layer record written",
        "blob written",
        "all synced",
        "layer in place",
        "record written aside",
        "record in place",
    ] {
        assert!(crashes.steps().contains(&step), "{step} in {:?}", crashes.steps());
    }
    crashes.check(|step, store| {
        let new = step == "record in place";
        assert_eq!(tags(store), if new { vec!["a.b/x:1", "a.b/y:1"] } else { vec!["a.b/x:1"] }, "{step}");
    });
}

#[test]
fn a_crash_while_a_tag_moves_leaves_it_with_one_image() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let old = add(&store, &[base(), top("1")], "a.b/x:1");
    let (crashes, new) = crashes(directory.path(), || add(&store, &[base(), top("2")], "a.b/x:1"));
    assert!(crashes.steps().contains(&"tag taken from the other"));
    let mut owners: Vec<Digest> = Vec::new();
    let seen = Mutex::new(&mut owners);
    crashes.check(|step, store| {
        assert_eq!(tags(store), ["a.b/x:1"], "{step}");
        assert!(store.find(old.id.as_str()).is_some(), "{step}: the old image stays");
        seen.lock().push(store.find("a.b/x:1").unwrap().id.clone());
    });
    let moved = owners.iter().position(|owner| *owner == new.id).unwrap();
    assert!(owners[..moved].iter().all(|owner| *owner == old.id), "the tag moves once");
    assert!(owners[moved..].iter().all(|owner| *owner == new.id), "and does not move back");
}

#[test]
fn a_crash_at_any_step_of_removing_leaves_the_old_or_the_new_state() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    add(&store, &[base(), top("1")], "a.b/x:1");
    let gone = add(&store, &[base(), top("2"), top("3")], "a.b/y:1");
    let (crashes, ()) = crashes(directory.path(), || store.remove(gone.id.as_str()).unwrap());
    let steps = ["image record removed", "blob removed", "blob removed", "layer moved away", "layer moved away"];
    assert_eq!(crashes.steps(), [&steps[..], &["layer removed"; 2]].concat());
    crashes.check(|step, store| assert_eq!(tags(store), ["a.b/x:1"], "{step}"));
}

#[test]
fn a_crash_at_any_step_of_removing_a_name_leaves_the_old_or_the_new_state() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    add(&store, &[base()], "a.b/x:1");
    add(&store, &[base()], "a.b/x:2");
    let (crashes, ()) = crashes(directory.path(), || store.remove("a.b/x:1").unwrap());
    assert_eq!(crashes.steps(), ["record written aside", "record in place"]);
    crashes.check(|step, store| {
        let new = step == "record in place";
        assert_eq!(tags(store), if new { vec!["a.b/x:2"] } else { vec!["a.b/x:1", "a.b/x:2"] }, "{step}");
    });
}

#[test]
fn a_crash_at_any_step_of_pruning_leaves_only_complete_images() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    for name in ["1", "2", "3"] {
        add(&store, &[base(), top(name)], &format!("a.b/x:{name}"));
    }
    let keep = |image: &Image| image.repo_tags.contains(&"a.b/x:2".to_owned());
    let (crashes, pruned) = crashes(directory.path(), || store.prune(keep).unwrap());
    assert_eq!(pruned.images.len(), 2);
    crashes.check(|step, store| assert!(store.find("a.b/x:2").is_some(), "{step}"));
    assert_eq!(tags(&store), ["a.b/x:2"]);
}

#[test]
fn a_crash_at_any_step_of_an_import_leaves_the_old_or_the_new_state() {
    let env = tempfile::tempdir().unwrap();
    let source = open(&env.path().join("source"));
    let tars: Vec<_> = (0..4).map(|at| Tar::default().file(&format!("f{at}"), b"x").end()).collect();
    let image = add(&source, &tars, "a.b/x:1");
    let archive = env.path().join("archive.tar");
    let mut file = std::fs::File::create(&archive).unwrap();
    source.export(&[image.id.to_string()], crate::Compress::No, &mut file, &ignore_progress).unwrap();
    let root = env.path().join("store");
    let store = open(&root);
    let (crashes, _) = crashes(&root, || store.import(&archive, None, &ignore_progress).unwrap());
    crashes.check(|step, store| {
        let new = step == "record in place";
        assert_eq!(tags(store).len(), usize::from(new), "{step}");
    });
}

/// Creates a store with two images on one base, and closes it.
fn two_images(root: &Path) -> [Arc<Image>; 2] {
    let store = open(root);
    [add(&store, &[base(), top("1")], "a.b/x:1"), add(&store, &[base(), top("2")], "a.b/x:2")]
}

#[test]
fn a_damaged_layer_record_drops_its_images_and_frees_the_space() {
    let flip = |text: &str| text.replacen("sha256:", "sha256:0", 1).replacen("0\"", "\"", 1);
    type Spoil<'a> = &'a dyn Fn(&Path);
    let empty: Spoil = &|path| std::fs::write(path, "").unwrap();
    let half: Spoil = &|path| std::fs::write(path, &std::fs::read(path).unwrap()[..50]).unwrap();
    let missing: Spoil = &|path| std::fs::remove_file(path).unwrap();
    let zeros: Spoil = &|path| std::fs::write(path, [0; 300]).unwrap();
    let rotten: Spoil = &|path| {
        let mut value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        value["chain_id"] = serde_json::json!(Digest::of(flip("x").as_bytes()));
        std::fs::write(path, value.to_string()).unwrap();
    };
    for (number, lost) in [(1, 2), (2, 1)] {
        for spoil in [empty, half, missing, zeros, rotten] {
            let directory = tempfile::tempdir().unwrap();
            two_images(directory.path());
            spoil(&directory.path().join(format!("layers/{number}/layer.json")));
            for _ in 0..2 {
                let store = open(directory.path());
                assert_eq!(store.list().len(), 2 - lost);
                let (usage, real) = (store.usage(), walk(directory.path()));
                assert_eq!((usage.bytes, usage.inodes), (real.bytes, real.inodes));
            }
            let store = open(directory.path());
            store.remove_unused().unwrap();
            whole("spoilt", directory.path(), &store);
            // The image can be added again.
            add(&store, &[base(), top("1")], "a.b/x:1");
            whole("again", directory.path(), &store);
        }
    }
}

#[test]
fn a_container_keeps_the_files_of_a_layer_with_a_damaged_record() {
    let directory = tempfile::tempdir().unwrap();
    two_images(directory.path());
    std::fs::write(directory.path().join("layers/1/layer.json"), "").unwrap();
    let store = open(directory.path());
    store.hold_lowers("container", &[2, 1].map(model::LayerNumber::new)).unwrap();
    store.remove_unused().unwrap();
    assert_eq!(names(&store.layers_dir()), ["1", "2"]);
    // The base is unpacked again; the container's copy stays beside it.
    add(&store, &[base(), top("1")], "a.b/x:1");
    assert_eq!(names(&store.layers_dir()), ["1", "2", "4"]);
    store.release("container").unwrap();
    assert_eq!(names(&store.layers_dir()), ["2", "4"], "layer 2 belongs to an image again");
}

#[test]
fn a_duplicate_layer_is_kept_while_a_container_may_use_it() {
    let directory = tempfile::tempdir().unwrap();
    two_images(directory.path());
    let layers = directory.path().join("layers");
    assert!(Command::new("cp").arg("-a").arg(layers.join("1")).arg(layers.join("9")).status().unwrap().success());
    let store = open(directory.path());
    assert_eq!(store.list().len(), 2);
    store.hold_lowers("container", &[model::LayerNumber::new(9)]).unwrap();
    store.remove_unused().unwrap();
    assert_eq!(names(&layers).len(), 4, "a container may run from either");
    store.release("container").unwrap();
    whole("twice", directory.path(), &store);
}

#[test]
fn a_missing_layer_does_not_drop_other_layers_of_a_container() {
    let directory = tempfile::tempdir().unwrap();
    two_images(directory.path());
    std::fs::remove_dir_all(directory.path().join("layers/1")).unwrap();
    let store = open(directory.path());
    assert!(store.hold_lowers("container", &[2, 1].map(model::LayerNumber::new)).is_err());
    store.remove_unused().unwrap();
    assert_eq!(names(&store.layers_dir()), ["2"]);
}

#[test]
fn a_damaged_or_misnamed_image_record_is_dropped_with_its_blobs_and_layers() {
    for spoil in ["", "{", "{\"version\":2}", "\0\0\0\0"] {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = two_images(directory.path());
        let record = |image: &Image| directory.path().join("images").join(format!("{}.json", image.id.hex()));
        std::fs::write(record(&one), spoil).unwrap();
        let store = open(directory.path());
        store.remove_unused().unwrap();
        assert_eq!(tags(&store), ["a.b/x:2"]);
        whole("spoilt", directory.path(), &store);
        drop(store);
        std::fs::rename(record(&two), record(&one)).unwrap();
        let store = open(directory.path());
        store.remove_unused().unwrap();
        assert!(store.list().is_empty());
        whole("misnamed", directory.path(), &store);
    }
}

#[test]
fn a_record_of_another_version_is_refused_and_not_treated_as_damaged() {
    for (path, found) in [("images", 3), ("layers/1", 3), ("images", 1), ("layers/1", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let [image, _] = two_images(directory.path());
        let name = if path == "images" { format!("{}.json", image.id.hex()) } else { "layer.json".to_owned() };
        std::fs::write(directory.path().join(path).join(&name), format!("{{\"version\":{found},\"unheard\":\"of\"}}"))
            .unwrap();
        let outcome = try_open(directory.path());
        assert!(matches!(outcome, Err(crate::OpenError::Version { found: it, .. }) if it == found));
        assert!(directory.path().join(path).join(name).exists());
    }
}

#[test]
fn a_leftover_in_tmp_that_cannot_be_removed_does_not_prevent_opening() {
    let directory = tempfile::tempdir().unwrap();
    two_images(directory.path());
    std::fs::create_dir_all(directory.path().join("tmp/8/fs")).unwrap();
    std::fs::write(directory.path().join("tmp/spool-1"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", directory.path().join("tmp/link")).unwrap();
    let store = open(directory.path());
    assert!(names(&directory.path().join("tmp")).is_empty());
    assert!(Path::new("/etc/passwd").exists());
    add(&store, &[top("4")], "a.b/x:4");
}
