use std::os::unix::fs::MetadataExt;

use super::*;
use crate::rootfs::user::{UserRequest, resolve_user};
use crate::store::commit::LayerPlan;
use crate::store::test_support::{add, base, names, open, top, try_open, walk};
use crate::test_support::{Head, Tar};
use model::ErrorClass as _;

#[test]
fn one_process_owns_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let second = Store::open(directory.path(), Registries::default(), Limits::default());
    assert!(matches!(second, Err(OpenError::InUse(_))));
    drop(store);
    open(directory.path());
    assert_eq!(std::fs::metadata(directory.path()).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn images_are_found_by_every_name_they_have() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base()], "docker.io/library/x:latest");
    let hex = image.id.hex();
    let digest_name = image.repo_digests[0].clone();
    for name in [
        "x",
        "x:latest",
        "docker.io/library/x",
        image.id.as_str(),
        hex,
        &hex[..12],
        &hex[..3],
        &format!("sha256:{}", &hex[..20]),
        &digest_name,
    ] {
        assert_eq!(store.find(name), Some(image.clone()), "{name}");
    }
    for name in
        ["", "y", "x:2", &hex[..2], &format!("sha256:{}", &hex[..11]), "a.b/x", "sha256:", &hex.replace(&hex[..1], "g")]
    {
        assert_eq!(store.find(name), None, "{name}");
    }
}

#[test]
fn an_ambiguous_id_prefix_is_an_error_that_lists_the_ids() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base()], "docker.io/library/x:latest");
    let mut other = Image::clone(&image);
    other.id = format!("sha256:{}{}", &image.id.hex()[..8], "0".repeat(56)).parse().unwrap();
    (other.repo_tags, other.repo_digests) = (Vec::new(), Vec::new());
    store.catalog.state().insert(Arc::new(other.clone()));
    for prefix in [&image.id.hex()[..3], &image.id.hex()[..8]] {
        assert_eq!(store.find(prefix), None);
        let error = store.lookup(prefix).unwrap_err().to_string();
        assert!([prefix, image.id.as_str(), other.id.as_str()].iter().all(|part| error.contains(part)), "{error}");
    }
    assert_eq!(store.lookup(&image.id.hex()[..20]).unwrap(), Some(image.clone()));
    // A name has precedence over an id.
    assert_eq!(store.lookup("x").unwrap(), Some(image));
    assert_eq!(store.lookup("000000").unwrap(), None);
}

#[test]
fn reopening_restores_everything_and_removes_leftovers_of_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base(), top("1")], "a.b/x:1");
    let (lowers, usage) = (store.lowers(&image).unwrap(), store.usage());
    assert_eq!(lowers, [2, 1].map(model::LayerNumber::new));
    drop(store);
    // A crash during unpacking, and during the write of a record.
    std::fs::create_dir_all(directory.path().join("tmp/77/fs/half")).unwrap();
    std::fs::write(directory.path().join("images/abc.new"), "{").unwrap();
    let store = open(directory.path());
    assert_eq!(store.list(), std::slice::from_ref(&image));
    assert_eq!((store.lowers(&image).unwrap(), store.usage()), (lowers, usage));
    assert!(names(&directory.path().join("tmp")).is_empty());
    assert_eq!(names(&directory.path().join("images")).len(), 1);
}

#[test]
fn a_layer_without_an_image_is_removed_only_by_a_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base(), top("1")], "a.b/x:1");
    drop(store);
    std::fs::remove_file(directory.path().join("images").join(format!("{}.json", image.id.hex()))).unwrap();
    let store = open(directory.path());
    assert_eq!(names(&store.layers_dir()).len(), 2, "holds are not known yet");
    store.hold_lowers("container", &[model::LayerNumber::new(1)]).unwrap();
    assert!(store.hold_lowers("container", &[model::LayerNumber::new(9)]).is_err());
    store.remove_unused().unwrap();
    assert_eq!(names(&store.layers_dir()), ["1"]);
    assert!(names(&directory.path().join("blobs")).is_empty());
    store.release("container").unwrap();
    assert!(names(&store.layers_dir()).is_empty());
    assert_eq!(store.usage().bytes, walk(directory.path()).bytes);
}

#[test]
fn an_image_with_a_missing_layer_is_dropped_at_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    add(&store, &[base(), top("1")], "a.b/x:1");
    drop(store);
    std::fs::remove_dir_all(directory.path().join("layers/1")).unwrap();
    let store = open(directory.path());
    assert!(store.list().is_empty());
    assert!(names(&directory.path().join("images")).is_empty());
}

#[test]
fn a_store_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base()], "a.b/x:1");
    drop(store);
    let path = directory.path().join("images").join(format!("{}.json", image.id.hex()));
    let text = std::fs::read_to_string(&path).unwrap().replace("\"version\":2", "\"version\":1");
    std::fs::write(&path, text).unwrap();
    let outcome = try_open(directory.path());
    assert!(matches!(outcome, Err(OpenError::Version { found: 1, .. })));
    assert!(path.exists());
}

#[test]
fn a_tag_in_two_records_belongs_to_the_newer() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let first = add(&store, &[base()], "a.b/x:1");
    let old_record = directory.path().join("images").join(format!("{}.json", first.id.hex()));
    let before = std::fs::read(&old_record).unwrap();
    let second = add(&store, &[top("2")], "a.b/x:1");
    assert!(store.find(first.id.as_str()).unwrap().repo_tags.is_empty());
    drop(store);
    // As after a crash between the two writes.
    std::fs::write(&old_record, before).unwrap();
    let store = open(directory.path());
    assert_eq!(store.find("a.b/x:1").unwrap().id, second.id);
    assert!(store.find(first.id.as_str()).unwrap().repo_tags.is_empty());
}

#[test]
fn removing_an_image_frees_layers_without_image_or_container() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    let one = add(&store, &[base(), top("1")], "a.b/x:1");
    let two = add(&store, &[base(), top("2")], "a.b/x:2");
    assert_eq!(names(&store.layers_dir()).len(), 3);
    assert_eq!(store.hold("container", &two.id).unwrap(), store.lowers(&two).unwrap());
    store.remove(one.id.as_str()).unwrap();
    assert_eq!((store.find("a.b/x:1"), names(&store.layers_dir()).len()), (None, 2));
    store.remove("a.b/x:2").unwrap();
    assert!(store.list().is_empty());
    assert_eq!(names(&store.layers_dir()).len(), 2, "the container is still running");
    assert!(store.hold("late", &two.id).is_err());
    store.release("container").unwrap();
    assert!(names(&store.layers_dir()).is_empty());
    assert!(names(&directory.path().join("blobs")).is_empty());
    store.remove(one.id.as_str()).unwrap();
    store.remove("never/was").unwrap();
}

#[test]
fn removing_one_of_several_tags_keeps_the_image() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base()], "a.b/x:1");
    add(&store, &[base()], "a.b/x:2");
    store.remove("a.b/x:1").unwrap();
    assert_eq!(store.find("a.b/x:1"), None);
    let digest_name = image.repo_digests[0].clone();
    store.remove(&digest_name).unwrap();
    let rest = store.find("a.b/x:2").unwrap();
    assert_eq!((rest.repo_tags.len(), rest.repo_digests.len()), (1, 0));
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.find("a.b/x:2"), Some(rest));
    store.remove("a.b/x:2").unwrap();
    assert!(store.list().is_empty());
}

#[test]
fn implied_directories_get_the_metadata_of_the_layer_below() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let below = Head { kind: b'5', mode: 0o1711, mtime: 77, ..Head::default() };
    let lower = Tar::default().entry("d", &below, b"").file("f", b"").end();
    let upper = Tar::default().file("d/new/x", b"").file("f2/y", b"").end();
    let image = add(&store, &[lower, upper], "a.b/x:1");
    let fs = store.layers_dir().join(store.lowers(&image).unwrap()[0].directory());
    let stat = std::fs::metadata(fs.join("d")).unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.mtime()), (0o1711, 77));
    assert_eq!(std::fs::metadata(fs.join("d/new")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_disk_error_while_adding_leaves_the_store_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    // Not a tar stream: unpacking fails after its directory was created.
    let plan =
        LayerPlan { chain_id: Digest::of(b"c"), diff_id: Digest::of(b"d"), parent: None, blob: None, registry: None };
    assert!(store.catalog.stage(&plan, &b"garbage".repeat(100)[..], &store.limits()).is_err());
    assert!(names(&directory.path().join("tmp")).is_empty());
    assert!(store.catalog.ready(&plan.chain_id).is_none());
}

#[test]
fn layers_unpacked_while_the_disk_lost_writes_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    let tars = [base(), top("1")];
    let chain = crate::test_support::Made::new(&tars, |tar| tar.to_vec());
    let blob = crate::config::ConfigBlob::parse(&chain.config).unwrap();
    let plan = LayerPlan {
        chain_id: blob.chain()[0].clone(),
        diff_id: blob.diff_ids[0].clone(),
        parent: None,
        blob: None,
        registry: None,
    };
    let staged = store.catalog.stage(&plan, &tars[0][..], &store.limits()).unwrap();
    assert!(store.catalog.ready(&plan.chain_id).is_some());
    store.catalog.losses.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    assert!(store.catalog.ready(&plan.chain_id).is_none(), "no other pull may use it");
    let new = crate::store::commit::NewImage {
        id: chain.id(),
        config_json: chain.config.clone(),
        user: String::new(),
        manifest: None,
        chain: vec![plan.chain_id.clone()],
        tags: Vec::new(),
        digests: Vec::new(),
    };
    assert!(store.catalog.add(new, std::slice::from_ref(&staged)).is_err());
    drop(staged);
    assert!(names(&directory.path().join("tmp")).is_empty() && names(&directory.path().join("blobs")).is_empty());
    add(&store, &tars, "a.b/x:1");
}

#[test]
fn usage_equals_du_also_while_layers_are_staged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let check = |what: &str| {
        let (usage, real) = (store.usage(), walk(directory.path()));
        assert_eq!((usage.bytes, usage.inodes), (real.bytes, real.inodes), "{what}");
    };
    check("empty");
    let big = (0..50).fold(Tar::default(), |tar, at| tar.file(&format!("d/f{at}"), &vec![7; at * 997])).end();
    let image = add(&store, &[base(), big], "a.b/x:1");
    check("one image");
    add(&store, &[base(), top("2")], "a.b/x:1");
    check("a shared layer, a moved tag");
    let tar = top("staged");
    let plan =
        LayerPlan { chain_id: Digest::of(&tar), diff_id: Digest::of(&tar), parent: None, blob: None, registry: None };
    let staged = store.catalog.stage(&plan, &tar[..], &store.limits()).unwrap();
    check("a staged layer");
    drop(staged);
    store.remove_unused().unwrap();
    store.remove(image.id.as_str()).unwrap();
    check("one removed");
}

#[test]
fn pruning_removes_images_that_are_neither_held_nor_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let images: Vec<_> = ["held", "pinned", "wanted", "spare", "spare too"]
        .iter()
        .map(|name| add(&store, &[base(), top(name)], &format!("a.b/{}:1", name.replace(' ', "-"))))
        .collect();
    let keep = |image: &Image| [&images[1].id, &images[2].id].contains(&&image.id);
    assert!(matches!(store.prune(keep), Err(crate::PruneError::Unknown)), "holds are not known yet");
    assert_eq!(store.list().len(), 5);
    store.hold("container", &images[0].id).unwrap();
    store.remove_unused().unwrap();
    let before = store.usage().bytes;
    let would = store.prunable(keep).unwrap();
    let ids = |pruned: &crate::Pruned| pruned.images.iter().map(|image| image.id.clone()).collect::<Vec<_>>();
    let mut expected = vec![images[3].id.clone(), images[4].id.clone()];
    expected.sort();
    assert_eq!((ids(&would), store.usage().bytes), (expected, before));
    let pruned = store.prune(keep).unwrap();
    assert_eq!(pruned, would);
    assert!(pruned.bytes > 0 && before - store.usage().bytes >= pruned.bytes);
    assert_eq!((store.list().len(), names(&store.layers_dir()).len()), (3, 4));
    store.release("container").unwrap();
    assert_eq!(store.prune(keep).unwrap().images, [images[0].clone()]);
}

#[test]
fn accounts_of_a_single_layer_are_read_without_a_mount() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let layer = Tar::default()
        .dir("etc")
        .file("etc/real", b"web:x:5:6::/srv:\n")
        .symlink("etc/passwd", "/etc/real")
        .symlink("etc/group", "../../../../../../etc/group-of-the-host")
        .end();
    let image = add(&store, &[layer], "a.b/x:1");
    let accounts = store.accounts(&image).unwrap();
    let user = resolve_user(&accounts, UserRequest { image_user: &image.user, ..UserRequest::default() }).unwrap();
    assert_eq!((user.uid, user.gid, user.home.as_str()), (5, 6, "/srv"));
    assert!(Arc::ptr_eq(&accounts, &store.accounts(&image).unwrap()));
}

#[test]
fn oversized_and_special_account_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    // A sparse file of 2 GiB.
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"2147483648"), ("GNU.sparse.map", b"0,1")];
    let huge = Tar::default().dir("etc").pax(records).file("etc/group", b"x").end();
    let error = store.accounts(&add(&store, &[huge], "a.b/x:1")).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
    // Opening a FIFO would block forever.
    let fifo = Head { kind: b'6', ..Head::default() };
    let fifo = Tar::default().dir("etc").entry("etc/passwd", &fifo, b"").end();
    let error = store.accounts(&add(&store, &[fifo], "a.b/x:2")).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
    let directory_instead = Tar::default().dir("etc").dir("etc/passwd").end();
    assert!(store.accounts(&add(&store, &[directory_instead], "a.b/x:3")).is_err());
}

#[test]
#[ignore = "needs root"]
fn accounts_are_read_from_the_merged_layers_without_mounts_on_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let before = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let lower = Tar::default()
        .dir("etc")
        .file("etc/passwd", b"web:x:1:1::/old:\n")
        .file("etc/group", b"audio:x:29:web\n")
        .file("etc/shadowed", b"web:x:1000:1000::/new:\n")
        .end();
    // The name becomes a link to a file of the layer below, and the group file is hidden.
    let upper = Tar::default().symlink("etc/passwd", "shadowed").file("etc/.wh.group", b"").end();
    let image = add(&store, &[lower, upper], "a.b/x:1");
    let user =
        resolve_user(&store.accounts(&image).unwrap(), UserRequest { image_user: "web", ..UserRequest::default() });
    let user = user.unwrap();
    assert_eq!((user.uid, user.groups, user.home.as_str()), (1000, vec![], "/new"));
    assert_eq!(std::fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
}

#[test]
#[ignore = "needs root"]
fn many_layers_fit_one_mount() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let tars: Vec<_> = (0..200).map(|at| Tar::default().file(&format!("f{at}"), b"").end()).collect();
    let mut tars = [vec![Tar::default().file("etc/passwd", b"web:x:3:4::/:\n").end()], tars].concat();
    tars.push(Tar::default().file("last", b"").end());
    let image = add(&store, &tars, "a.b/x:1");
    assert_eq!(store.lowers(&image).unwrap().len(), 202);
    let user =
        resolve_user(&store.accounts(&image).unwrap(), UserRequest { image_user: "web", ..UserRequest::default() });
    assert_eq!(user.unwrap().uid, 3);
}

#[test]
fn a_removed_tag_does_not_reappear_from_an_older_record() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let one = add(&store, &[top("1")], "a.b/x:1");
    let path = store.catalog.image_path(&one.id);
    let before = std::fs::read(&path).unwrap();
    add(&store, &[top("2")], "a.b/x:1");
    // A crash between the two writes of a moved tag.
    std::fs::write(&path, before).unwrap();
    drop(store);
    let store = open(directory.path());
    store.remove("a.b/x:1").unwrap();
    assert_eq!(store.find("a.b/x:1"), None);
    drop(store);
    assert_eq!(open(directory.path()).find("a.b/x:1"), None);
}

#[test]
fn records_with_the_former_pinned_field_are_still_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = add(&store, &[base()], "a.b/x:1");
    let path = store.catalog.image_path(&image.id);
    drop(store);
    let text = std::fs::read_to_string(&path).unwrap().replace("\"chain\":", "\"pinned\":true,\"chain\":");
    assert!(text.contains("pinned"));
    std::fs::write(&path, text).unwrap();
    assert_eq!(open(directory.path()).find("a.b/x:1"), Some(image));
}

#[test]
fn new_limits_apply_to_later_pulls() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { downloads: 2, ..Limits::default() };
    let store = Store::open(dir.path(), Registries::default(), limits).unwrap();
    let (before, http) = (store.pull_limits(), store.http());
    store.set_limits(limits);
    assert!(Arc::ptr_eq(&before.places, &store.pull_limits().places), "equal limits change nothing");
    let new = Limits { downloads: 5, stall: std::time::Duration::from_secs(7), ..limits };
    store.set_limits(new);
    assert_eq!(store.limits(), new);
    assert!(!Arc::ptr_eq(&before.places, &store.pull_limits().places), "new limits have new places");
    assert!(!Arc::ptr_eq(&http, &store.http()), "new clients use the new stall timeout");
    assert_eq!(before.limits, limits, "active pulls keep the old limits");
}
