use std::fs;

use model::metrics::{CpuCounters, DeviceIo, GroupCounters, MemoryCounters};

use super::tests::*;
use super::*;

#[test]
fn v1_counters_for_metrics_are_read() {
    let host = Host::v1(&[
        ("cpuacct.usage", "123456789\n"),
        ("cpuacct.usage_user", "100000000\n"),
        ("cpuacct.usage_sys", "23456789\n"),
        ("cpu.stat", "nr_periods 40\nnr_throttled 3\nthrottled_time 5000\nnr_bursts 0\nburst_time 0\n"),
        ("memory.usage_in_bytes", "3145728\n"),
        ("memory.stat", &V1_STAT.replace("total_mapped_file 0", "total_mapped_file 512")),
        ("memory.limit_in_bytes", "67108864\n"),
        ("memory.max_usage_in_bytes", "4145728\n"),
        ("memory.failcnt", "4\n"),
        ("memory.memsw.failcnt", "7\n"),
        ("memory.kmem.usage_in_bytes", "77\n"),
        ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("pids.current", "7\n"),
        ("pids.max", "max\n"),
        (
            "blkio.throttle.io_service_bytes_recursive",
            "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Async 2\n8:0 Discard 3\n8:0 Total 9\n\
             254:16 Read 5\n254:16 Write 0\nTotal 99\n",
        ),
        ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
    ]);
    let GroupCounters { usage: _, cpu, memory, io, huge_pages, tasks, tasks_max } = host.counters();
    let cpu_known = CpuCounters {
        user: Some(100_000_000),
        system: Some(23_456_789),
        periods: Some(40),
        throttled_periods: Some(3),
        throttled: Some(5000),
    };
    assert_eq!(cpu, cpu_known);
    let memory_known = MemoryCounters {
        cache: Some(2_097_152),
        mapped: Some(512),
        kernel: Some(77),
        peak: Some(4_145_728),
        limit_hits: Some(11),
        oom_kills: Some(2),
        own_page_faults: Some(80),
        own_major_page_faults: Some(1),
        reserved: Some(0),
    };
    assert_eq!(memory, memory_known);
    let first = DeviceIo {
        major: 8,
        minor: 0,
        read_bytes: Some(4096),
        write_bytes: Some(8192),
        discard_bytes: Some(3),
        reads: Some(1),
        writes: Some(2),
    };
    let second = DeviceIo { major: 254, minor: 16, read_bytes: Some(5), write_bytes: Some(0), ..DeviceIo::default() };
    assert_eq!(io, [first, second]);
    assert_eq!((huge_pages.len(), tasks, tasks_max), (0, Some(7), Some(0)));
}

#[test]
fn v2_counters_for_metrics_are_read() {
    let host = Host::v2(&[
        ("cpu.stat", &CPU_STAT.replace("throttled_usec 0", "throttled_usec 9")),
        ("memory.current", "21794816\n"),
        ("memory.stat", V2_STAT),
        ("memory.peak", "22794816\n"),
        ("memory.min", "4096\n"),
        ("memory.events", "low 0\nhigh 0\nmax 6\noom 1\noom_kill 5\noom_group_kill 0\n"),
        ("pids.current", "2\n"),
        ("pids.max", "100\n"),
        ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n7:0 \n"),
    ]);
    let GroupCounters { usage: _, cpu, memory, io, huge_pages: _, tasks, tasks_max } = host.counters();
    let cpu_known = CpuCounters {
        user: Some(66_749_000),
        system: Some(258_655_000),
        periods: Some(0),
        throttled_periods: Some(0),
        throttled: Some(9000),
    };
    assert_eq!(cpu, cpu_known);
    let memory_known = MemoryCounters {
        cache: Some(21_213_184),
        mapped: Some(0),
        kernel: Some(172_032),
        peak: Some(22_794_816),
        limit_hits: Some(6),
        oom_kills: Some(5),
        own_page_faults: Some(844),
        own_major_page_faults: Some(2),
        reserved: Some(4096),
    };
    assert_eq!(memory, memory_known);
    let device = DeviceIo {
        major: 8,
        minor: 0,
        read_bytes: Some(1),
        write_bytes: Some(2),
        discard_bytes: Some(5),
        reads: Some(3),
        writes: Some(4),
    };
    assert_eq!((io, tasks, tasks_max), (vec![device], Some(2), Some(100)));
}

#[test]
fn counters_without_a_file_are_absent() {
    for host in [Host::v1(&[]), Host::v2(&[])] {
        let GroupCounters { usage: _, cpu, memory, io, huge_pages, tasks, tasks_max } = host.counters();
        assert_eq!((cpu, memory), (CpuCounters::default(), MemoryCounters::default()));
        assert_eq!((io.len(), huge_pages.len(), tasks, tasks_max), (0, 0, None, None));
        fs::remove_dir_all(host.trees.path()).unwrap();
        assert_eq!(host.group.counters(&mut ReadBuffer::default()).unwrap(), None);
    }
}

#[test]
fn processes_of_all_levels_are_members() {
    for host in [Host::v1(&[]), Host::v2(&[])] {
        let dir = host.dir("memory.stat");
        fs::create_dir_all(dir.join("below/further")).unwrap();
        for (at, text) in [("", "7\n8\n0\n"), ("below", ""), ("below/further", "9\n")] {
            fs::write(dir.join(at).join("cgroup.procs"), text).unwrap();
        }
        let members: Vec<u32> = host.group.members().unwrap().into_iter().map(std::num::NonZeroU32::get).collect();
        assert_eq!(members, [7, 8, 9], "0 is a process of another PID namespace");
        fs::remove_dir_all(dir).unwrap();
        assert!(host.group.members().unwrap().is_empty());
    }
}
