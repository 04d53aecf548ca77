use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use model::{ContainerId, ContainerState};

use super::*;
use crate::store::Table;

const PATIENCE: Duration = Duration::from_secs(30);

/// Containers with layers below one directory.
struct Layers {
    dir: tempfile::TempDir,
    table: Table<ContainerRecord>,
    meter: Arc<DiskUsageMeter>,
}

impl Layers {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), table: Table::default(), meter: Arc::default() }
    }

    /// Adds a container with this number of files in its layer.
    fn container(&self, number: u8, files: usize) -> Arc<Container> {
        let mut record = crate::convert::tests::support::container_record();
        record.id = ContainerId::from_bytes([number; 32]);
        record.state = ContainerState::Running { pid: NonZeroU32::MIN, started: SystemTime::UNIX_EPOCH };
        let upper = self.layer(&record).join("upper");
        fs::create_dir_all(&upper).unwrap();
        for n in 0..files {
            fs::write(upper.join(n.to_string()), "").unwrap();
        }
        self.table.insert(record)
    }

    fn layer(&self, record: &ContainerRecord) -> PathBuf {
        self.dir.path().join(record.id.as_str())
    }

    fn request(&self, containers: &[Arc<Container>], within: Duration) {
        self.meter.request(containers, within, |record| self.layer(record), |_| None);
    }
}

fn inodes(container: &Container) -> Option<u64> {
    container.samples().disk.known().map(|usage| usage.inodes)
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_first_answer_has_the_size_already() {
    let layers = Layers::new();
    let all: Vec<_> = (0..20).map(|number| layers.container(number, usize::from(number))).collect();
    let begin = SystemTime::now();
    layers.request(&all, PATIENCE);
    for (number, container) in (0..).zip(&all) {
        assert_eq!(inodes(container), Some(number + 1));
        assert!(container.samples().disk.known().unwrap().at >= begin);
    }
    wait_until("the thread ends when there is nothing to do", || !layers.meter.lock().busy);
}

#[test]
fn known_values_are_returned_at_once_and_rarely_measured() {
    let layers = Layers::new();
    let container = layers.container(1, 1);
    layers.request(std::slice::from_ref(&container), PATIENCE);
    fs::write(layers.layer(&container.get()).join("upper/new"), "").unwrap();
    layers.request(std::slice::from_ref(&container), PATIENCE);
    assert_eq!(inodes(&container), Some(2), "still the value of a moment ago");
    assert!(layers.meter.lock().is_empty());
}

#[test]
fn a_caller_waits_no_longer_than_its_timeout() {
    let layers = Layers::new();
    let container = layers.container(1, 1);
    // Holds the flag of the thread, so that nothing is measured.
    layers.meter.lock().busy = true;
    let begin = Instant::now();
    layers.request(std::slice::from_ref(&container), Duration::from_millis(20));
    assert!((Duration::from_millis(20)..PATIENCE / 2).contains(&begin.elapsed()));
    assert_eq!(inodes(&container), None);
    layers.meter.lock().busy = false;
    layers.request(&[], PATIENCE);
    wait_until("the remaining layers are measured", || inodes(&container) == Some(2));
}

#[test]
fn removed_layers_and_layers_without_entries_are_skipped() {
    let layers = Layers::new();
    let (gone, dropped) = (layers.container(1, 1), layers.container(2, 1));
    fs::remove_dir_all(layers.layer(&gone.get())).unwrap();
    layers.request(std::slice::from_ref(&gone), PATIENCE);
    assert_eq!(inodes(&gone), Some(0));
    layers.meter.lock().busy = true;
    layers.request(std::slice::from_ref(&dropped), Duration::ZERO);
    layers.table.remove(dropped.get().id.as_str());
    drop(dropped);
    layers.meter.lock().busy = false;
    layers.request(&[], PATIENCE);
    wait_until("the work is done", || !layers.meter.lock().busy && layers.meter.lock().is_empty());
}

#[test]
fn a_large_layer_delays_no_other() {
    let layers = Layers::new();
    let (large, small) = (layers.container(1, 30_000), layers.container(2, 5));
    // Two large ones, so that one waits for the other.
    let second = layers.container(3, 30_000);
    layers.request(&[large.clone(), second.clone()], Duration::ZERO);
    layers.request(std::slice::from_ref(&small), PATIENCE);
    assert_eq!(inodes(&small), Some(6));
    wait_until("the large ones are measured too", || {
        let queue = layers.meter.lock();
        assert!(queue.large.iter().skip(1).all(|job| job.walk.is_none()), "one walk under way at a time");
        drop(queue);
        inodes(&large) == Some(30_001) && inodes(&second) == Some(30_001)
    });
}

#[test]
fn large_and_small_layers_alternate_and_new_ones_come_first() {
    let place = Path::new("/nowhere");
    let job = |name: &str| Job {
        pod: None,
        container: Weak::new(),
        dir: place.join(name),
        walk: None,
        spent: Duration::ZERO,
        large: false,
    };
    let mut queue = Queue {
        first: [job("new")].into(),
        again: [job("a"), job("b"), job("c")].into(),
        large: [job("x"), job("y")].into(),
        ..Queue::default()
    };
    let mut order = Vec::new();
    while let Some(next) = queue.next() {
        order.push(next.dir.file_name().unwrap().to_str().unwrap().to_owned());
    }
    assert_eq!(order, ["new", "x", "a", "y", "b", "c"]);
}
