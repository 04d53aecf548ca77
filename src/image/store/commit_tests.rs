//! Adding staged layers to the store.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::Store;
use crate::store::commit::{LayerPlan, NewImage, ReadyLayer};
use crate::store::test_support::{add, base, names, open};
use crate::test_support::{Head, Tar};

/// Returns an image of these layers, and each of them staged, lowest first.
fn staged(store: &Store, tars: &[Vec<u8>]) -> (NewImage, Vec<ReadyLayer>) {
    let made = crate::test_support::Made::new(tars, |tar| tar.to_vec());
    let blob = crate::config::ConfigBlob::parse(&made.config).unwrap();
    let chain = blob.chain();
    let stage = |(at, tar): (usize, &Vec<u8>)| {
        let parent = at.checked_sub(1).map(|below| chain[below].clone());
        let plan = LayerPlan {
            chain_id: chain[at].clone(),
            diff_id: blob.diff_ids[at].clone(),
            parent,
            blob: None,
            registry: None,
        };
        store
            .catalog
            .ready(&plan.chain_id)
            .unwrap_or_else(|| store.catalog.stage(&plan, &tar[..], &store.limits()).unwrap())
    };
    let layers = tars.iter().enumerate().map(stage).collect();
    let (id, config_json, user) = (made.id(), made.config.clone(), blob.config.user);
    let (tags, digests) = (vec!["a.b/x:1".to_owned()], Vec::new());
    (NewImage { id, config_json, user, manifest: None, chain, tags, digests }, layers)
}

#[test]
fn layers_are_completed_in_any_order_of_arrival() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let looks = Head { kind: b'5', mode: 0o1711, ..Head::default() };
    let lowest = Tar::default().entry("d", &looks, b"").file("t", b"content").end();
    let middle = Tar::default().file("d/m", b"").link("l", "t").end();
    let highest = Tar::default().file("d/h", b"").link("ll", "l").end();
    let (new, mut layers) = staged(&store, &[lowest, middle, highest]);
    layers.reverse();
    let image = store.catalog.add(new, &layers).unwrap();
    let top = store.layers_dir().join(store.lowers(&image).unwrap()[0].directory());
    assert_eq!(std::fs::metadata(top.join("d")).unwrap().mode() & 0o7777, 0o1711);
    assert_eq!(std::fs::read(top.join("ll")).unwrap(), b"content");
}

#[test]
fn completing_a_layer_does_not_hold_the_change_lock() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    add(&store, &[base()], "a.b/other:1");
    let links = (0..3).fold(Tar::default(), |tar, at| tar.link(&format!("l{at}"), "t"));
    let (new, layers) = staged(&store, &[Tar::default().file("t", b"t").end(), links.end()]);
    let free = Arc::new(AtomicUsize::new(0));
    let (catalog, seen) = (store.catalog.clone(), free.clone());
    let looking = crate::store::crash_points::at_each_step(directory.path(), move |step| {
        if step == "layer record written" && catalog.change.try_lock().is_some() {
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    store.catalog.add(new, &layers).unwrap();
    drop(looking);
    assert_eq!(free.load(Ordering::Relaxed), 2);
}

#[test]
fn pulls_that_share_staged_layers_may_end_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    for round in 0..20 {
        let looks = Head { kind: b'5', mode: 0o1711, ..Head::default() };
        let below = Tar::default().entry("d", &looks, b"").file("t", round.to_string().as_bytes());
        let below = below.symlink("s", "d").end();
        let middle = (0..50).fold(Tar::default(), |tar, at| tar.link(&format!("s/m{at}"), "t")).end();
        let own = |of: usize| (0..50).fold(Tar::default(), |tar, at| tar.link(&format!("s/o{of}-{at}"), "s/m1")).end();
        let all: Vec<_> = (0..3).map(|of| staged(&store, &[below.clone(), middle.clone(), own(of)])).collect();
        std::thread::scope(|threads| {
            for (new, layers) in all {
                let store = &store;
                threads.spawn(move || {
                    let _pin = store.catalog.pin(new.chain.clone());
                    let image = store.catalog.add(new, &layers).unwrap();
                    assert_eq!(store.lowers(&image).unwrap().len(), 3);
                });
            }
        });
        store.prune(|_| false).unwrap();
    }
    assert!(names(&store.layers_dir()).is_empty() && names(&directory.path().join("tmp")).is_empty());
}
