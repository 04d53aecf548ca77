//! Many threads that use one store.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::archive::progress::ignore_progress;
use crate::store::test_support::{add, base, names, open, top, walk};
use crate::test_support::Tar;
use model::ErrorClass as _;

/// Returns a unique layer with enough files to take a while to unpack.
fn own(of: usize) -> Vec<u8> {
    (0..20).fold(Tar::default(), |tar, at| tar.file(&format!("own-{of}-{at}"), &[1; 3000])).end()
}

#[test]
fn images_are_added_and_removed_while_containers_hold_shared_layers() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.remove_unused().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let store = &store;
                threads.spawn(move || {
                    for round in 0..25 {
                        // All share the base; pairs share the second layer.
                        let tars = [base(), top(&format!("{}", worker % 2)), own(worker)];
                        let name = format!("a.b/x:{worker}");
                        let image = add(store, &tars, &name);
                        let owner = format!("container-{worker}-{round}");
                        // Another thread prunes: then `hold` returns an error.
                        let Ok(lowers) = store.hold(&owner, &image.id) else { continue };
                        if round % 2 == 0 {
                            store.remove(&name).unwrap();
                        }
                        for (at, file) in
                            [format!("own-{worker}-3"), "top".to_owned(), "base".to_owned()].iter().enumerate()
                        {
                            assert!(
                                store.layers_dir().join(lowers[at].directory()).join(file).is_file(),
                                "{owner} lost {file}"
                            );
                        }
                        store.release(&owner).unwrap();
                    }
                })
            })
            .collect();
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.prune(|image| image.repo_tags.iter().any(|tag| tag.ends_with(":1"))).unwrap();
                store.usage();
                std::thread::yield_now();
            }
        });
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for image in store.list() {
                    // It may be removed at any time, but never in part.
                    let id = [image.id.to_string()];
                    if let Err(error) = store.export(&id, crate::Compress::No, &mut std::io::sink(), &ignore_progress) {
                        let kind = error.kind();
                        assert!(matches!(kind, model::ErrorKind::NotFound | model::ErrorKind::Internal), "{error:?}");
                        assert!(
                            !matches!(error, crate::ExportError::Tape { .. } | crate::ExportError::Changed { .. }),
                            "{error:?}"
                        );
                    }
                }
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    for image in store.list() {
        store.lowers(&image).unwrap();
    }
    store.prune(|_| false).unwrap();
    assert!(store.list().is_empty());
    for empty in ["layers", "images", "blobs", "tmp"] {
        assert!(names(&directory.path().join(empty)).is_empty(), "{empty}");
    }
    let (usage, real) = (store.usage(), walk(directory.path()));
    assert_eq!((usage.bytes, usage.inodes), (real.bytes, real.inodes));
}
