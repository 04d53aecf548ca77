//! A daemon's image store: what lies in it, and containers that show what an image holds.

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

    /// Bytes and inodes that images take, as the daemon says.
    pub(crate) fn image_usage(&self) -> (u64, u64) {
        let request = v1::ImageFsInfoRequest::default();
        let answer = self.image_call(|mut c| async move { c.image_fs_info(request).await }).unwrap();
        let filesystem = &answer.image_filesystems[0];
        (filesystem.used_bytes.unwrap().value, filesystem.inodes_used.unwrap().value)
    }
}

impl Daemon {
    /// The store holds so many layers, nothing half done, and takes as much room as the daemon says.
    pub(crate) fn check_store(&self, layers: usize) {
        let store = self.env.root().join("images").canonicalize().unwrap();
        let names = |dir: &str| -> Vec<_> {
            fs::read_dir(store.join(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        // Who hung up or fails does not wait for what it began to be cleared away.
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
        // Records are a daemon's own affair: counted or not. What a file system needs to find a file's pieces it may
        // only know when it writes them, after they were weighed: up to a block for each.
        let least_bytes = least.bytes - least.inodes * 4096;
        assert!((least_bytes..=most.bytes).contains(&bytes), "{bytes} bytes are not {least:?} to {most:?}");
        assert!((least.inodes..=most.inodes).contains(&inodes), "{inodes} inodes are not {least:?} to {most:?}");
    }

    /// The layers that a store with nothing but the test image has.
    pub(crate) fn check_nothing_left(&self) {
        self.check_store(1);
        assert_eq!(self.client().images().len(), 1);
    }

    /// What a shell script prints in a container of `image`.
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
