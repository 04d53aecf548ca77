//! The steps of `crisp demo`: CPU up, memory up, memory down while in use, memory down after it was
//! freed.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use cgroup::{Cgroup, CgroupFs as _, Knob, Version};
use cri_api::v1;

use super::super::cgroup_files::readable;
use super::super::color::Color;
use super::super::selftest::{Failed, PodSize, Selftest, SelftestContainer, SelftestError, SelftestPod, Steps};
use super::super::units;

const SMALL: PodSize = PodSize { millis: 250, mib: 64 };
const LARGE: PodSize = PodSize { millis: 1000, mib: 192 };
/// Memory that the program allocates, in MiB: more than the limit of the small pod.
const HELD: u64 = 96;
/// How long CPU usage is measured.
const MEASURED: Duration = Duration::from_millis(1500);
const LOOK_EVERY: Duration = Duration::from_millis(150);

pub(super) async fn run_script(selftest: &Selftest, steps: &mut Steps) -> Result<(), Failed> {
    heading("Create a pod, with an image built from this program (no registry needed)");
    let demo = Demo::make(selftest, steps).await?;
    let before = demo.identity(steps).await?;

    heading("CPU up: 250m to 1, while the program uses all CPU time it gets");
    demo.measure(steps).await?;
    demo.cpu(steps, LARGE.millis).await?;
    demo.measure(steps).await?;

    heading("Memory up: 64Mi to 192Mi, then the program allocates 96 MiB");
    demo.memory(steps, LARGE.mib).await?;
    demo.hold(steps, HELD).await?;

    heading("Memory down while the memory is in use: refused, no process is killed");
    demo.refused(steps).await?;

    heading("Memory down after the program has freed the memory");
    demo.hold(steps, 0).await?;
    demo.memory(steps, SMALL.mib).await?;

    heading("CPU down: 1 to 250m");
    demo.cpu(steps, SMALL.millis).await?;
    demo.measure(steps).await?;

    heading("The process is still the same");
    demo.same(steps, before).await
}

fn heading(text: &str) {
    writeln!(io::stdout(), "\n{}", Color::stdout().bold(text)).ok();
}

/// Draws CPU usage as a bar.
fn bar(percent: u128) -> String {
    let blocks = usize::try_from(percent / 5).unwrap_or(0).min(40);
    format!("{percent:>3}% of a CPU  {}", "█".repeat(blocks))
}

/// Returns the part of a refusal with the numbers, without the container before it and the file after it.
fn numbers(refusal: &str) -> &str {
    let begin = refusal.find("memory limit (").unwrap_or(0);
    let rest = refusal.get(begin..).unwrap_or(refusal);
    rest.split_once(": ").map_or(rest, |(numbers, _)| numbers)
}

/// The pod of the demo.
struct Demo<'a> {
    selftest: &'a Selftest,
    pod: SelftestPod,
    container: SelftestContainer,
}

/// Identity of the process, and the number of OOM kills.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    pid: Option<u32>,
    started: i64,
    kills: u64,
}

impl<'a> Demo<'a> {
    async fn make(selftest: &'a Selftest, steps: &mut Steps) -> Result<Self, Failed> {
        let import = async { Ok(((), units::measured(selftest.import().await?))) };
        steps.step("image", import).await?;
        let pod = async {
            let pod = selftest.run_pod(SMALL).await?;
            let address = selftest.address(&pod).await?.unwrap_or_else(|| "no network".to_owned());
            Ok((pod, address))
        };
        let pod = steps.step("pod", pod).await?;
        let create = async {
            let made = selftest.create(&pod, "app", "work", SMALL).await?;
            let values = values(&made.group, &cpu_and_memory(&made.group));
            Ok((made, values))
        };
        let container = steps.step("container", create).await?;
        let start = async {
            selftest.start(&container).await?;
            selftest.wait_for_line(&container, "ready").await?;
            let pid = selftest.inspect(&container.id).await?.1.pid;
            Ok(((), format!("pid {}", pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string()))))
        };
        steps.step("start", start).await?;
        Ok(Self { selftest, pod, container })
    }

    /// Measures the container's CPU usage and shows it live.
    async fn measure(&self, steps: &mut Steps) -> Result<(), Failed> {
        let failed = |source| Failed::Step { step: "stats", source };
        let (begin, first) = (Instant::now(), self.cpu_time().await.map_err(failed)?);
        loop {
            steps.pause(LOOK_EVERY).await?;
            let used = self.cpu_time().await.map_err(failed)?.saturating_sub(first);
            let percent = u128::from(used) * 100 / begin.elapsed().as_nanos().max(1);
            let end = begin.elapsed() >= MEASURED;
            steps.watch("CPU usage", &bar(percent), end);
            if end {
                return Ok(());
            }
        }
    }

    /// Returns the container's CPU time in nanoseconds.
    async fn cpu_time(&self) -> Result<u64, SelftestError> {
        let cpu = self.selftest.stats(&self.container).await?.cpu;
        Ok(cpu.and_then(|cpu| cpu.usage_core_nano_seconds).map_or(0, |value| value.value))
    }

    async fn cpu(&self, steps: &mut Steps, millis: u64) -> Result<(), Failed> {
        let to = v1::LinuxContainerResources { memory_limit_in_bytes: 0, ..PodSize { millis, mib: 0 }.to_wire() };
        self.resize(steps, "resize cpu", to, &cpu_knobs(&self.container.group)).await
    }

    async fn memory(&self, steps: &mut Steps, mib: u64) -> Result<(), Failed> {
        self.resize(steps, "resize memory", memory(mib), &[memory_knob(&self.container.group)]).await
    }

    /// Resizes pod and container: the pod first if it grows, last if it shrinks.
    async fn resize(
        &self,
        steps: &mut Steps,
        step: &'static str,
        to: v1::LinuxContainerResources,
        knobs: &[Knob],
    ) -> Result<(), Failed> {
        let before = read(&self.container.group, knobs);
        let grows = to.cpu_quota >= 100_000 || to.memory_limit_in_bytes >= i64::try_from(LARGE.mib << 20).unwrap_or(0);
        let change = async {
            if grows {
                self.selftest.update_pod(&self.pod, to.clone()).await?;
                self.selftest.update(&self.container, to).await?;
            } else {
                self.selftest.update(&self.container, to.clone()).await?;
                self.selftest.update_pod(&self.pod, to).await?;
            }
            let after = read(&self.container.group, knobs);
            let all = knobs.iter().zip(before.iter().zip(&after));
            let words: Vec<String> = all.map(|(knob, (was, is))| format!("{knob} {was} → {is}")).collect();
            Ok(((), words.join(", ")))
        };
        steps.step(step, change).await
    }

    /// Makes the program hold `mib` MiB of memory.
    async fn hold(&self, steps: &mut Steps, mib: u64) -> Result<(), Failed> {
        let hold = async {
            self.selftest.exec(&self.container, &["hold", &mib.to_string()]).await?;
            let stats = self.selftest.stats(&self.container).await?;
            let memory = stats.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |bytes| bytes.value);
            Ok(((), format!("the program holds {mib} MiB; {} in use", units::measured(memory))))
        };
        steps.step(if mib > 0 { "allocate memory" } else { "free memory" }, hold).await
    }

    /// Checks that a limit below the usage is refused and leaves the file unchanged.
    async fn refused(&self, steps: &mut Steps) -> Result<(), Failed> {
        let knob = memory_knob(&self.container.group);
        let before = read(&self.container.group, std::slice::from_ref(&knob));
        let refused = async {
            let error = match self.selftest.update(&self.container, memory(SMALL.mib)).await {
                Err(SelftestError::Daemon(status)) if status.code() == tonic::Code::FailedPrecondition => status,
                Err(other) => return Err(other),
                Ok(()) => return Err(SelftestError::Wrong("a memory limit below the usage was accepted".to_owned())),
            };
            let after = read(&self.container.group, std::slice::from_ref(&knob));
            if before != after {
                return Err(SelftestError::Wrong(format!("{knob} changed from {before:?} to {after:?}")));
            }
            Ok(((), format!("{knob} is still {}: {}", after.join(" "), numbers(error.message()))))
        };
        steps.step("refused", refused).await
    }

    async fn look(&self) -> Result<Identity, SelftestError> {
        let (status, info) = self.selftest.inspect(&self.container.id).await?;
        let counted = self.container.group.oom_file().and_then(|file| std::fs::read_to_string(file).ok());
        let counted = counted.unwrap_or_default();
        let kills = counted.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        Ok(Identity { pid: info.pid, started: status.started_at, kills: kills.unwrap_or(0) })
    }

    async fn identity(&self, steps: &Steps) -> Result<Identity, Failed> {
        steps.pause(Duration::ZERO).await?;
        self.look().await.map_err(|source| Failed::Step { step: "start", source })
    }

    async fn same(&self, steps: &mut Steps, before: Identity) -> Result<(), Failed> {
        let same = async {
            let after = self.look().await?;
            if before != after {
                return Err(SelftestError::Wrong(format!("the process changed from {before:?} to {after:?}")));
            }
            let pid = after.pid.unwrap_or(0);
            Ok(((), format!("pid {pid}, 0 restarts, {} OOM kills", after.kills)))
        };
        steps.step("process", same).await
    }
}

fn memory(mib: u64) -> v1::LinuxContainerResources {
    let bytes = i64::try_from(mib << 20).unwrap_or(i64::MAX);
    v1::LinuxContainerResources { memory_limit_in_bytes: bytes, ..Default::default() }
}

fn cpu_knobs(group: &Cgroup) -> Vec<Knob> {
    match group.layout().version() {
        Version::V1 => vec![Knob::CFS_QUOTA, Knob::CPU_SHARES],
        Version::V2 => vec![Knob::CPU_MAX, Knob::CPU_WEIGHT],
    }
}

fn memory_knob(group: &Cgroup) -> Knob {
    match group.layout().version() {
        Version::V1 => Knob::MEMORY_LIMIT,
        Version::V2 => Knob::MEMORY_MAX,
    }
}

fn cpu_and_memory(group: &Cgroup) -> Vec<Knob> {
    cpu_knobs(group).into_iter().chain([memory_knob(group)]).collect()
}

/// Reads the cgroup files.
fn read(group: &Cgroup, knobs: &[Knob]) -> Vec<String> {
    knobs.iter().map(|knob| group.read(knob).map_or_else(|_| "-".to_owned(), |text| text.trim().to_owned())).collect()
}

fn values(group: &Cgroup, knobs: &[Knob]) -> String {
    let all = knobs.iter().zip(read(group, knobs));
    all.map(|(knob, value)| format!("{knob} {}", readable(knob.file(), &value))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_refusal_are_shown() {
        let words = "changing x: attempting to set memory limit (1) below current usage (2): 1 bytes cannot be reclaimed, /sys/f stays";
        let expected = "memory limit (1) below current usage (2)";
        assert_eq!(numbers(words), expected);
        assert_eq!(numbers("something else"), "something else");
    }

    #[test]
    fn the_length_of_a_bar_is_the_cpu_usage() {
        assert_eq!(bar(25), " 25% of a CPU  █████");
        assert_eq!(bar(0), "  0% of a CPU  ");
    }
}
