//! Helpers for the image store of a daemon.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use cri_api::v1;

use crate::support::client::{Asked, Client, container};
use crate::support::harness::{Daemon, seconds, wait_for};

impl Client {
    pub(crate) fn pull_as(&self, image: &str, auth: v1::AuthConfig) -> Asked<String> {
        let image = Some(v1::ImageSpec { image: image.into(), ..Default::default() });
        let request = v1::PullImageRequest { image, auth: Some(auth), ..Default::default() };
        self.image_call(|mut c| async move { c.pull_image(request).await }).map(|answer| answer.image_ref)
    }

    /// Returns bytes and inodes of images, as the daemon reports them.
    pub(crate) fn image_usage(&self) -> (u64, u64) {
        let request = v1::ImageFsInfoRequest::default();
        let answer = self.image_call(|mut c| async move { c.image_fs_info(request).await }).unwrap();
        let filesystem = &answer.image_filesystems[0];
        (filesystem.used_bytes.unwrap().value, filesystem.inodes_used.unwrap().value)
    }
}

impl Daemon {
    /// Checks that the store has this number of layers, no incomplete ones, and the reported size.
    pub(crate) fn check_store(&self, layers: usize) {
        let store = self.env.root().join("images").canonicalize().unwrap();
        let names = |dir: &str| -> Vec<_> {
            fs::read_dir(store.join(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        // After a disconnect or failure the cleanup runs in the background.
        wait_for("work in progress to be cleared away", seconds(5), || {
            (names("tmp").is_empty() && names("layers").len() == layers).then_some(())
        });
        let (bytes, inodes) = self.client().image_usage();
        let mut least = Weight::default();
        for number in names("layers") {
            least.add(&store.join("layers").join(number).join("fs"));
        }
        let mut most = Weight::default();
        most.add(&store);
        // Records may be counted or not. A file system may allocate metadata blocks only when it
        // writes the data, after the store was measured: up to one block per file.
        let least_bytes = least.bytes - least.inodes * 4096;
        assert!((least_bytes..=most.bytes).contains(&bytes), "{bytes} bytes are not {least:?} to {most:?}");
        assert!((least.inodes..=most.inodes).contains(&inodes), "{inodes} inodes are not {least:?} to {most:?}");
    }

    /// Returns the layers of a store with only the test image.
    pub(crate) fn check_nothing_left(&self) {
        self.check_store(1);
        assert_eq!(self.client().images().len(), 1);
    }

    /// Returns the output of a shell script in a container of `image`.
    pub(crate) fn print_in(&self, image: &str, script: &str) -> String {
        self.print_with(image, script, |_| ())
    }

    pub(crate) fn print_with(
        &self,
        image: &str,
        script: &str,
        change: impl FnOnce(&mut v1::ContainerConfig),
    ) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let pod = self.run_pod(&format!("print-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let mut config = container("main", &["sh", "-c", script]);
        config.image.as_mut().unwrap().image = image.to_owned();
        change(&mut config);
        let ended = self.client().finish_config(&pod, config);
        assert_eq!(ended.stderr, "", "{script}");
        self.client().remove_pod(&pod.id).unwrap();
        ended.stdout
    }
}

#[derive(Debug, Default)]
struct Weight {
    bytes: u64,
    inodes: u64,
    linked: HashSet<u64>,
}

impl Weight {
    fn add(&mut self, path: &Path) {
        let meta = fs::symlink_metadata(path).unwrap();
        if !meta.is_dir() && meta.nlink() > 1 && !self.linked.insert(meta.ino()) {
            return;
        }
        self.bytes += meta.blocks() * 512;
        self.inodes += 1;
        if meta.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| self.add(&entry.unwrap().path()));
        }
    }
}
