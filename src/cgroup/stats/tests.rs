use std::fs;
use std::io::BufRead as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::ErrorClass as _;
use model::metrics::GroupCounters;
use model::stats::{MemoryUsage, Stall, SwapUsage};

use super::read::keyed;
use super::*;
use crate::layout::{Hierarchy, HierarchyKind, Layout};
use model::CgroupPath;

/// As Linux 6.18 writes it, for a container with a limit of 64 MiB.
pub(super) const V1_STAT: &str = "cache 8192\nrss 4096\nrss_huge 0\nshmem 0\nmapped_file 0\ndirty 0\nwriteback 0\n\
    workingset_refault_anon 0\nworkingset_refault_file 0\nswap 0\nswapcached 0\npgpgin 90\npgpgout 12\npgfault 80\n\
    pgmajfault 1\ninactive_anon 4096\nactive_anon 0\ninactive_file 4096\nactive_file 0\nunevictable 0\n\
    hierarchical_memory_limit 67108864\nhierarchical_memsw_limit 134217728\ntotal_cache 2097152\ntotal_rss 1048576\n\
    total_rss_huge 0\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_dirty 0\ntotal_writeback 0\n\
    total_workingset_refault_anon 0\ntotal_workingset_refault_file 0\ntotal_swap 16384\ntotal_swapcached 0\n\
    total_pgpgin 1000\ntotal_pgpgout 100\ntotal_pgfault 1234\ntotal_pgmajfault 5\ntotal_inactive_anon 1048576\n\
    total_active_anon 0\ntotal_inactive_file 1572864\ntotal_active_file 524288\ntotal_unevictable 0\n";

/// As Linux 6.1 writes it.
pub(super) const V2_STAT: &str = "anon 172032\nfile 21213184\nkernel 172032\nkernel_stack 16384\npagetables 40960\n\
    sec_pagetables 0\npercpu 0\nsock 0\nvmalloc 0\nshmem 20971520\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n\
    swapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 21098496\nactive_anon 4096\n\
    inactive_file 233472\nactive_file 8192\nunevictable 0\nslab_reclaimable 59256\nslab_unreclaimable 28128\n\
    slab 87384\nworkingset_refault_anon 0\nworkingset_refault_file 0\nworkingset_activate_anon 0\npgscan 0\n\
    pgsteal 0\npgfault 844\npgmajfault 2\npgrefill 0\nthp_fault_alloc 0\nthp_collapse_alloc 0\n";

pub(super) const CPU_STAT: &str = "usage_usec 325405\nuser_usec 66749\nsystem_usec 258655\nnr_periods 0\nnr_throttled 0\n\
    throttled_usec 0\nnr_bursts 0\nburst_usec 0\n";

pub(super) const PRESSURE: &str = "some avg10=23.22 avg60=39.84 avg300=32.28 total=176961051\n\
    full avg10=0.00 avg60=0.10 avg300=0.00 total=632\n";

/// A host with `files` in the cgroup `/pod/c1` of the tree that their controller belongs to.
pub(super) struct Host {
    pub(super) group: Cgroup,
    pub(super) trees: tempfile::TempDir,
}

impl Host {
    pub(super) fn v1(files: &[(&str, &str)]) -> Self {
        let trees = tempfile::tempdir().unwrap();
        let hierarchy = |name: &str| Hierarchy {
            kind: HierarchyKind::Controllers(vec![name.to_owned()]),
            mount: trees.path().join(name),
        };
        let hierarchies = ["cpu", "cpuacct", "memory", "pids", "blkio"].map(hierarchy).to_vec();
        let unified = Some(trees.path().join("unified"));
        Self::with(Layout::V1 { hierarchies, unified }, trees, files)
    }

    pub(super) fn v2(files: &[(&str, &str)]) -> Self {
        let trees = tempfile::tempdir().unwrap();
        Self::with(Layout::V2 { root: trees.path().to_owned() }, trees, files)
    }

    pub(super) fn with(layout: Layout, trees: tempfile::TempDir, files: &[(&str, &str)]) -> Self {
        let group = Cgroup::new(Arc::new(layout), CgroupPath::new("/pod/c1").unwrap());
        group.dirs().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let host = Self { group, trees };
        files.iter().for_each(|(file, text)| host.write(file, text));
        host
    }

    pub(super) fn write(&self, file: &str, text: &str) {
        fs::write(self.dir(file).join(file), text).unwrap();
    }

    pub(super) fn dir(&self, file: &str) -> std::path::PathBuf {
        let controller = file.split('.').next().unwrap();
        let dir = if file.ends_with(".pressure") { self.group.unified_dir() } else { self.group.dir_of(controller) };
        dir.unwrap()
    }

    pub(super) fn usage(&self) -> GroupUsage {
        self.group.usage(&mut ReadBuffer::default()).unwrap().unwrap()
    }

    pub(super) fn counters(&self) -> GroupCounters {
        let counters = self.group.counters(&mut ReadBuffer::default()).unwrap().unwrap();
        let same = self.usage();
        assert_eq!(GroupUsage { at: same.at, ..counters.usage.clone() }, same, "one reading for both");
        counters
    }
}

#[test]
fn v1_files_are_read_with_descendants() {
    let host = Host::v1(&[
        ("cpuacct.usage", "123456789\n"),
        ("memory.usage_in_bytes", "3145728\n"),
        ("memory.stat", V1_STAT),
        ("memory.limit_in_bytes", "67108864\n"),
        ("memory.memsw.limit_in_bytes", "134217728\n"),
        ("pids.current", "7\n"),
        ("cpu.pressure", PRESSURE),
        ("memory.pressure", PRESSURE),
        ("io.pressure", PRESSURE),
    ]);
    let usage = host.usage();
    assert_eq!(usage.cpu, Some(123_456_789));
    assert_eq!(
        usage.memory,
        Some(MemoryUsage {
            usage: 3_145_728,
            working_set: 1_572_864,
            available: Some(67_108_864 - 1_572_864),
            rss: Some(1_048_576),
            page_faults: Some(1234),
            major_page_faults: Some(5),
        })
    );
    assert_eq!(usage.swap, Some(SwapUsage { usage: 16384, available: Some(67_108_864 - 16384) }));
    assert!(usage.cpu_pressure.is_some() && usage.memory_pressure.is_some() && usage.io_pressure.is_some());
    assert_eq!(host.group.tasks(&mut ReadBuffer::default()).unwrap().unwrap().count, 7);
}

#[test]
fn v2_files_are_read() {
    let host = Host::v2(&[
        ("cpu.stat", CPU_STAT),
        ("memory.current", "21794816\n"),
        ("memory.stat", V2_STAT),
        ("memory.max", "33554432\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "8192\n"),
        ("pids.current", "2\n"),
        ("cpu.pressure", PRESSURE),
    ]);
    let usage = host.usage();
    assert_eq!(usage.cpu, Some(325_405_000));
    assert_eq!(
        usage.memory,
        Some(MemoryUsage {
            usage: 21_794_816,
            working_set: 21_794_816 - 233_472,
            available: Some(33_554_432 - (21_794_816 - 233_472)),
            rss: Some(172_032),
            page_faults: Some(844),
            major_page_faults: Some(2),
        })
    );
    assert_eq!(usage.swap, Some(SwapUsage { usage: 4096, available: Some(4096) }));
    assert_eq!((usage.memory_pressure, usage.io_pressure), (None, None));
    assert_eq!(host.group.tasks(&mut ReadBuffer::default()).unwrap().unwrap().count, 2);
}

#[test]
fn available_memory_is_absent_without_a_limit() {
    let v1 = Host::v1(&[
        ("memory.usage_in_bytes", "8192\n"),
        ("memory.stat", &V1_STAT.replace("limit 67108864", "limit 9223372036854771712")),
        ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
    ]);
    assert_eq!(v1.usage().memory.unwrap().available, None);
    assert_eq!(v1.usage().swap.unwrap().available, None);
    // The limit of the parent does not count.
    v1.write("memory.stat", V1_STAT);
    v1.write("memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(v1.usage().memory.unwrap().available, None);
    let v2 = Host::v2(&[
        ("memory.current", "8192\n"),
        ("memory.max", "max\n"),
        ("memory.swap.current", "0\n"),
        ("memory.swap.max", "max\n"),
    ]);
    assert_eq!(v2.usage().memory.unwrap().available, None);
    assert_eq!(v2.usage().swap, Some(SwapUsage { usage: 0, available: None }));
}

#[test]
fn no_value_is_negative() {
    // Read one after the other while they change, files can contradict each other; a lowered limit
    // can be below the usage.
    let v1 = Host::v1(&[
        ("memory.usage_in_bytes", "4096\n"),
        ("memory.stat", V1_STAT),
        ("memory.limit_in_bytes", "0\n"),
        ("memory.memsw.limit_in_bytes", "0\n"),
    ]);
    let memory = v1.usage().memory.unwrap();
    assert_eq!((memory.working_set, memory.available), (0, Some(0)));
    assert_eq!(v1.usage().swap, Some(SwapUsage { usage: 16384, available: Some(0) }));
    let v2 = Host::v2(&[
        ("memory.current", "4096\n"),
        ("memory.stat", "inactive_file 8192\n"),
        ("memory.max", "0\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "0\n"),
    ]);
    let memory = v2.usage().memory.unwrap();
    assert_eq!((memory.working_set, memory.available), (0, Some(0)));
    assert_eq!(v2.usage().swap, Some(SwapUsage { usage: 4096, available: Some(0) }));
}

#[test]
fn values_without_a_file_are_absent_and_others_reported() {
    let host = Host::v1(&[("memory.usage_in_bytes", "4096\n")]);
    let usage = host.usage();
    assert_eq!((usage.cpu, usage.swap, usage.cpu_pressure), (None, None, None));
    let memory = usage.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set, memory.rss, memory.page_faults), (4096, 4096, None, None));
    assert_eq!(host.group.tasks(&mut ReadBuffer::default()).unwrap(), None);
    let host = Host::v2(&[("cpu.stat", CPU_STAT)]);
    let usage = host.usage();
    assert_eq!((usage.cpu, usage.memory, usage.swap), (Some(325_405_000), None, None));
}

#[test]
fn a_removed_cgroup_has_no_usage() {
    for host in [Host::v1(&[]), Host::v2(&[])] {
        fs::remove_dir_all(host.trees.path()).unwrap();
        assert_eq!(host.group.usage(&mut ReadBuffer::default()).unwrap(), None);
        assert_eq!(host.group.tasks(&mut ReadBuffer::default()).unwrap(), None);
    }
}

#[test]
fn an_unreadable_file_is_an_error_that_names_it() {
    let host = Host::v2(&[("cpu.stat", CPU_STAT)]);
    fs::create_dir(host.dir("memory.current").join("memory.current")).unwrap();
    let error = host.group.usage(&mut ReadBuffer::default()).unwrap_err();
    assert!(error.to_string().ends_with("/pod/c1/memory.current"), "{error}");
    assert_eq!(error.kind(), model::ErrorKind::Internal);
}

#[test]
fn a_damaged_value_is_absent_and_never_a_wrong_number() {
    for text in ["", "\n", "-1\n", "1.5\n", "0x10\n", "18446744073709551616\n", "many\n", "\u{fffd}\n"] {
        let host = Host::v1(&[("cpuacct.usage", text), ("memory.usage_in_bytes", text), ("pids.current", text)]);
        let usage = host.usage();
        assert_eq!((usage.cpu, usage.memory), (None, None), "{text:?}");
        assert_eq!(host.group.tasks(&mut ReadBuffer::default()).unwrap(), None, "{text:?}");
    }
    let host = Host::v2(&[("memory.current", "1\n"), ("memory.max", "lots\n")]);
    fs::write(host.dir("cpu.stat").join("cpu.stat"), b"usage_usec \xff\xfe\n").unwrap();
    let usage = host.usage();
    assert_eq!((usage.cpu, usage.memory.unwrap().available), (None, None));
    assert_eq!(v2::cpu_times("usage_usec 18446744073709551615\n").used, None, "more nanoseconds than a number holds");
    assert_eq!(keyed("a 1\na b\nb\n\nc  3\na_b 4\n", ["a", "b", "c"]), [None, None, Some(3)]);
}

#[test]
fn pressure_is_reported_in_nanoseconds() {
    let pressure = pressure::parse(PRESSURE).unwrap();
    assert_eq!(pressure.some, Stall { avg10: 23.22, avg60: 39.84, avg300: 32.28, total: 176_961_051_000 });
    assert_eq!(pressure.full, Some(Stall { avg10: 0.0, avg60: 0.1, avg300: 0.0, total: 632_000 }));
    let older = PRESSURE.lines().next().unwrap();
    assert_eq!(pressure::parse(older).unwrap().full, None, "of the processor before 5.13");
}

#[test]
fn pressure_in_another_form_is_absent() {
    let good = PRESSURE.lines().next().unwrap();
    for bad in [
        "",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "something avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=0.00 avg60=0.00 total=0\n",
        "some avg10=NaN avg60=0.00 avg300=0.00 total=0\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=-1\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=18446744073709551615\n",
    ] {
        assert_eq!(pressure::parse(bad), None, "{bad:?}");
    }
    assert_eq!(pressure::parse(&format!("{good}\nfull nonsense\n")).unwrap().full, None);
}

#[test]
fn a_file_of_any_length_is_read_whole() {
    let host = Host::v2(&[("memory.current", "1\n")]);
    let long: String = (0..3000).map(|n| format!("key{n} {n}\n")).collect();
    host.write("memory.stat", &format!("{long}anon 77\n"));
    let mut scratch = ReadBuffer::default();
    for _ in 0..2 {
        let usage = host.group.usage(&mut scratch).unwrap().unwrap();
        assert_eq!(usage.memory.unwrap().rss, Some(77));
    }
    assert_eq!(scratch.number(Path::new("/dev"), "null").unwrap(), None);
    assert!(scratch.text(Path::new("/dev"), "zero").is_err(), "it never ends");
}

#[test]
#[ignore = "needs root"]
fn usage_of_a_process_is_reported() {
    let throwaway = crate::tests::Throwaway::new();
    let group = &throwaway.group;
    let script = "for f in \"$@\"; do echo $$ > \"$f\" || exit 99; done; echo in; while :; do :; done";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).args(group.join_files()).stdout(std::process::Stdio::piped());
    // If an assertion fails from here on, removing the cgroup kills the process.
    let mut child = command.spawn().unwrap();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let mut scratch = ReadBuffer::default();
    let mut look = || group.usage(&mut scratch).unwrap().unwrap();
    let first = look();
    std::thread::sleep(Duration::from_millis(300));
    let second = look();
    assert!(second.cpu.unwrap() > first.cpu.unwrap() && second.at > first.at, "{first:?} {second:?}");
    // The kernel adds up the counters of other CPUs with a delay.
    assert!(second.memory.unwrap().usage > 0 && second.memory.unwrap().page_faults.is_some(), "{second:?}");
    assert_eq!(group.tasks(&mut scratch).unwrap().unwrap().count, 1);
    child.kill().unwrap();
    child.wait().unwrap();
    group.remove().unwrap();
    assert_eq!(group.usage(&mut scratch).unwrap(), None);
}
