//! Metrics of the daemon's process, under the names that Prometheus' client libraries use.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::text::{Exposition, Kind};

/// One reading of the process; a value that the kernel did not report is absent.
#[derive(Debug, Default, PartialEq)]
struct Process {
    cpu: Option<Duration>,
    /// In bytes.
    resident: Option<u64>,
    /// In bytes.
    virtual_size: Option<u64>,
    threads: Option<u64>,
    /// Since the epoch.
    started: Option<Duration>,
    open_files: Option<u64>,
}

pub(super) fn write(text: &mut Exposition) {
    let Process { cpu, resident, virtual_size, threads, started, open_files } = Process::read();
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let mut number = |name, kind, help, value: Option<u64>| {
        let mut family = text.family(name, kind, help);
        value.into_iter().for_each(|value| family.sample(&[], value));
    };
    number("process_resident_memory_bytes", Kind::Gauge, "Resident memory of the daemon, in bytes.", resident);
    number("process_virtual_memory_bytes", Kind::Gauge, "Virtual memory of the daemon, in bytes.", virtual_size);
    let limit = Some(limit(Resource::As));
    number("process_virtual_memory_max_bytes", Kind::Gauge, "Limit of the daemon's virtual memory, in bytes.", limit);
    number("process_open_fds", Kind::Gauge, "Open file descriptors of the daemon.", open_files);
    let limit = Some(self::limit(Resource::Nofile));
    number("process_max_fds", Kind::Gauge, "Limit of the daemon's open file descriptors.", limit);
    number("process_threads", Kind::Gauge, "Threads of the daemon.", threads);
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", Kind::Counter, "CPU time of the daemon, user and system, in seconds.", cpu),
        ("process_start_time_seconds", Kind::Gauge, "Start of the daemon, in seconds since the epoch.", started),
    ] {
        let mut family = text.family(name, kind, help);
        seconds(value).into_iter().for_each(|value| family.sample(&[], value));
    }
}

impl Process {
    fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The directory is open while it is read.
        let open_files = fs::read_dir("/proc/self/fd").map(|dir| dir.count().saturating_sub(1));
        let open_files = open_files.ok().and_then(|count| u64::try_from(count).ok());
        Self { open_files, ..Self::of_stat(&stat, booted(), clock_ticks(), page_size()) }
    }

    /// Parses /proc/PID/stat; see proc_pid_stat(5).
    fn of_stat(stat: &str, booted: Option<Duration>, ticks: u64, page: u64) -> Self {
        // The program's name is in parentheses and may contain any character.
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        // The first field here is number 3 of the manual page.
        let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
        let time = |count: u64| Duration::from_millis(count.saturating_mul(1000) / ticks.max(1));
        Self {
            cpu: field(14).zip(field(15)).map(|(user, system)| time(user.saturating_add(system))),
            resident: field(24).map(|pages| pages.saturating_mul(page)),
            virtual_size: field(23),
            threads: field(20),
            started: field(22).zip(booted).map(|(after, booted)| booted.saturating_add(time(after))),
            open_files: None,
        }
    }
}

/// Returns the current limit; the largest number if there is none, as other clients report it.
fn limit(resource: Resource) -> u64 {
    getrlimit(resource).current.unwrap_or(u64::MAX)
}

/// Returns the time of the boot since the epoch, as first read: a later change of the clock must not
/// look like a new process.
fn booted() -> Option<Duration> {
    static BOOTED: OnceLock<Option<Duration>> = OnceLock::new();
    *BOOTED.get_or_init(|| {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let seconds = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
        Some(Duration::from_secs(seconds))
    })
}

fn clock_ticks() -> u64 {
    rustix::param::clock_ticks_per_second()
}

fn page_size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_is_skipped() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 300 4096000 25 184 1 1";
        let process = Process::of_stat(stat, Some(Duration::from_secs(1000)), 100, 4096);
        let expected = Process {
            cpu: Some(Duration::from_secs(3)),
            resident: Some(25 * 4096),
            virtual_size: Some(4_096_000),
            threads: Some(9),
            started: Some(Duration::from_secs(1003)),
            open_files: None,
        };
        assert_eq!(process, expected);
        assert_eq!(Process::of_stat("", None, 100, 4096), Process::default());
        assert_eq!(Process::of_stat("7 (x) S 1", None, 0, 4096), Process::default());
    }

    #[test]
    fn the_values_are_those_of_this_process() {
        let files: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let mut text = Exposition::default();
        write(&mut text);
        let text = String::from(text);
        let values: BTreeMap<&str, f64> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, value)| (name, value.parse().unwrap()))
            .collect();
        assert_eq!(values.len(), 8, "{text}");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - values["process_start_time_seconds"];
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert!(values["process_resident_memory_bytes"] > 1e6 && values["process_threads"] >= 2.0, "{text}");
        assert!(values["process_virtual_memory_bytes"] > values["process_resident_memory_bytes"], "{text}");
        assert!(
            values["process_open_fds"] >= 13.0 && values["process_max_fds"] >= values["process_open_fds"],
            "{text}"
        );
        drop(files);
    }
}
