//! CPU time of the whole machine, which includes kernel threads.
//!
//! Kernel threads do a part of the work of a pod's life, such as removing its network namespace. They belong to no
//! cgroup of a runtime. So the CPU time of the machine is measured, less the rate of all other processes, which is
//! measured just before, and less the benchmark's own time.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use cgroup::Layout;

use super::{Counter, TICKS_PER_SECOND, clock};

/// Duration of the measurement of other processes.
const CALM: Duration = Duration::from_millis(400);
/// Time for kernel threads to finish the work of an operation.
const SETTLE: Duration = Duration::from_millis(200);

/// A measurement of the machine's CPU time, from its start until [`Machine::finish`].
#[derive(Debug)]
pub(crate) struct Machine {
    counter: Option<Counter>,
    /// CPU seconds of all other processes in a second.
    others: f64,
    begin: Instant,
    used: Duration,
    own: Duration,
}

impl Machine {
    /// Waits until the work of earlier operations is done, measures the other processes, and starts.
    pub(crate) async fn start() -> io::Result<Self> {
        let layout = Layout::detect().map_err(io::Error::other)?;
        let counter = Counter::of(&layout, "/");
        tokio::time::sleep(SETTLE).await;
        let (begin, before) = (Instant::now(), used(counter.as_ref())?);
        tokio::time::sleep(CALM).await;
        let now = used(counter.as_ref())?;
        let others = now.saturating_sub(before).as_secs_f64() / begin.elapsed().as_secs_f64();
        Ok(Self { counter, others, begin: Instant::now(), used: now, own: own() })
    }

    /// CPU time of other processes in a second, in ms.
    pub(crate) fn others_ms(&self) -> f64 {
        self.others * 1000.0
    }

    /// Returns the CPU seconds since the start without those of other processes and of the benchmark; None if the
    /// others used less than before, so that there is no result.
    pub(crate) async fn finish(self) -> io::Result<Option<f64>> {
        tokio::time::sleep(SETTLE).await;
        let used = used(self.counter.as_ref())?.saturating_sub(self.used).as_secs_f64();
        let own = own().saturating_sub(self.own).as_secs_f64();
        Ok(remaining(used, own, self.others * self.begin.elapsed().as_secs_f64()))
    }
}

/// Returns what remains of `used`; None if that is less than a tenth of what is subtracted for others.
fn remaining(used: f64, own: f64, others: f64) -> Option<f64> {
    let rest = used - own - others;
    (rest > 0.0 && rest > others / 10.0).then_some(rest)
}

fn own() -> Duration {
    clock(i32::try_from(std::process::id()).unwrap_or_default())
}

/// Returns the machine's CPU time: of the root cgroup, or else of `/proc/stat`, which counts in ticks.
fn used(counter: Option<&Counter>) -> io::Result<Duration> {
    match counter {
        Some(counter) => counter.read(),
        None => of_stat(&fs::read_to_string(Path::new("/proc/stat"))?),
    }
}

/// Adds up user, nice, system, irq and softirq; not idle, iowait and stolen time.
fn of_stat(text: &str) -> io::Result<Duration> {
    let fields = text.lines().find_map(|line| line.strip_prefix("cpu ")).map(str::split_whitespace);
    let fields: Vec<u64> = fields.into_iter().flatten().filter_map(|field| field.parse().ok()).collect();
    let ticks = [0, 1, 2, 5, 6].iter().map(|index| fields.get(*index).copied()).sum::<Option<u64>>();
    let ticks = ticks.ok_or_else(|| io::Error::other("no CPU time in /proc/stat"))?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_has_no_idle_and_no_stolen_time() {
        let text = "cpu  100 20 300 9999 888 4 6 777 0 0\ncpu0 1 1 1 1 1 1 1 1\n";
        assert_eq!(of_stat(text).unwrap(), Duration::from_millis(4300));
        assert!(of_stat("intr 5\n").is_err());
    }

    #[test]
    fn a_value_within_the_noise_of_other_processes_is_none() {
        assert_eq!(remaining(3.0, 0.5, 1.0), Some(1.5));
        assert_eq!(remaining(3.0, 0.5, 2.4), None);
        assert_eq!(remaining(1.0, 0.5, 2.0), None);
    }

    #[tokio::test]
    async fn the_time_of_another_process_is_measured_unless_the_machine_is_too_busy() {
        let machine = Machine::start().await.unwrap();
        let (others, before) = (machine.others_ms(), used(None).unwrap());
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", spin]).status().unwrap().success());
        let measured = machine.finish().await.unwrap();
        assert!(used(None).unwrap() > before && others >= 0.0);
        assert!(measured.is_none_or(|seconds| (0.01..60.0).contains(&seconds)), "{measured:?} {others}");
    }
}
