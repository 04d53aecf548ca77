//! Measures logging of a container that prints as fast as possible: throughput, and CPU time of daemon and shim.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cri_api::v1;

use super::super::report::results::Unit;
use super::super::runtime::{Pod, Runtime};
use super::LOG_CPU;

const RATE: &str = "log: bytes printed";
/// A line with its newline; its length divides 1 MiB.
const LINE: &[u8; 128] = b"The quick brown fox jumps over the lazy dog, again and again, until 128 bytes of this line are full and another line can begin.\n";
/// Timeout for the container to print everything.
const PATIENCE: Duration = Duration::from_secs(600);
/// Timeout after the container's exit until the log is complete.
const SETTLE: Duration = Duration::from_secs(20);

/// A directory that is removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn make(runtime: &str, round: u32) -> io::Result<Self> {
        let name = format!("crisp-bench-log-{}-{runtime}-{round}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "cannot remove the benchmark's log directory; remove it by hand");
        }
    }
}

/// Measures a container that prints `mib` MiB.
pub(super) async fn measure(runtime: &mut Runtime, round: u32, mib: u64) {
    match Box::pin(run(runtime, round, mib)).await {
        Ok((took, used)) => {
            let megabytes = u32::try_from(mib << 20).map_or(f64::from(u32::MAX), f64::from) / 1e6;
            runtime.figures.add(RATE, Unit::MBPerSecond, megabytes / took.as_secs_f64());
            runtime.figures.add_time(LOG_CPU, used);
        }
        Err(error) => runtime.figures.fail(LOG_CPU, Unit::Ms, &error),
    }
}

/// Returns the time until the log was complete, and the CPU time used.
async fn run(runtime: &mut Runtime, round: u32, mib: u64) -> Result<(Duration, Duration), String> {
    let directory = Directory::make(&runtime.name, round).map_err(|e| e.to_string())?;
    let container = Box::pin(prepare(runtime, &directory.0, round, mib)).await?;
    let before = runtime.family.cpu(&runtime.ids()).map_err(|e| e.to_string())?;
    let begin = Instant::now();
    let start = v1::StartContainerRequest { container_id: container.clone() };
    runtime.client.start_container(start).await.map_err(|status| status.message().to_owned())?;
    wait(runtime, &container).await?;
    let log = directory.0.join("log");
    let (want, ended) = (mib << 20, Instant::now());
    let mut used = runtime.family.cpu(&runtime.ids()).map_err(|e| e.to_string())?;
    let mut took = begin.elapsed();
    loop {
        let got = count(BufReader::with_capacity(1 << 20, File::open(&log).map_err(|e| e.to_string())?));
        match got.map_err(|e| e.to_string())? {
            got if got == want => return Ok((took, used.saturating_sub(before))),
            got if ended.elapsed() > SETTLE => {
                return Err(format!("the log has {got} bytes: expected {want}"));
            }
            _ => {}
        }
        // The rest of the output is still being written, and its CPU time counts as well.
        tokio::time::sleep(Duration::from_millis(200)).await;
        used = runtime.family.cpu(&runtime.ids()).map_err(|e| e.to_string())?;
        took = begin.elapsed();
    }
}

/// Creates a container that prints as soon as it is started.
async fn prepare(runtime: &mut Runtime, logs: &Path, round: u32, mib: u64) -> Result<String, String> {
    let Runtime { client, shape, pods, .. } = runtime;
    let message = |status: tonic::Status| status.message().to_owned();
    let mut shape = shape.clone();
    shape.host_network = true;
    let mut config = shape.pod(&format!("log-{round}"));
    config.log_directory = logs.display().to_string();
    let run = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let id = client.run_pod_sandbox(run).await.map_err(message)?.into_inner().pod_sandbox_id;
    pods.push(Pod { id: id.clone(), containers: Vec::new() });
    let line = String::from_utf8_lossy(LINE.trim_ascii_end()).into_owned();
    let script = format!("yes '{line}' | dd bs=1M count={mib} iflag=fullblock 2>/dev/null");
    let mut container = shape.unlimited("printer", &["sh", "-c", &script]);
    container.log_path = "log".to_owned();
    let create =
        v1::CreateContainerRequest { pod_sandbox_id: id, config: Some(container), sandbox_config: Some(config) };
    let container = client.create_container(create).await.map_err(message)?.into_inner().container_id;
    if let Some(pod) = pods.last_mut() {
        pod.containers.push(container.clone());
    }
    Ok(container)
}

/// Polls until the container exits, at a low rate to keep the load on the runtime small.
async fn wait(runtime: &mut Runtime, container: &str) -> Result<(), String> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let request = v1::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
        let answer = runtime.client.container_status(request).await.map_err(|status| status.message().to_owned())?;
        match answer.into_inner().status {
            Some(status) if status.state() == v1::ContainerState::ContainerExited => {
                return if status.exit_code == 0 { Ok(()) } else { Err(format!("exit code {}", status.exit_code)) };
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    Err(format!("container did not exit within {} s", PATIENCE.as_secs()))
}

/// Counts the container's bytes in a log; fails if a line differs from [`LINE`].
fn count(mut log: impl BufRead) -> io::Result<u64> {
    let odd = |line: &[u8]| io::Error::other(format!("not a line as printed: {:?}", String::from_utf8_lossy(line)));
    let (mut bytes, mut line) = (0, Vec::new());
    // The current line so far: long lines are logged in parts.
    let mut have: Vec<u8> = Vec::new();
    loop {
        line.clear();
        if log.read_until(b'\n', &mut line)? == 0 || line.last() != Some(&b'\n') {
            return Ok(bytes);
        }
        // Time, stream, tag and text.
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let (tag, text) = (fields.nth(2), fields.next());
        let text = text.and_then(|text| text.strip_suffix(b"\n")).ok_or_else(|| odd(&line))?;
        have.extend_from_slice(text);
        bytes += text.len() as u64;
        match tag {
            Some(b"P") => {}
            Some(b"F") if LINE.strip_suffix(b"\n") == Some(&have) => {
                bytes += 1;
                have.clear();
            }
            _ => return Err(odd(&line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: &str, text: &[u8]) -> Vec<u8> {
        [b"2026-01-01T00:00:00.000000000Z stdout ", tag.as_bytes(), b" ", text, b"\n"].concat()
    }

    #[test]
    fn only_the_containers_bytes_in_a_log_are_counted() {
        let line = &LINE[..127];
        assert_eq!(LINE.len(), 128);
        assert_eq!((1 << 20) % LINE.len(), 0);
        let log = [entry("F", line), entry("P", &line[..100]), entry("F", &line[100..])].concat();
        assert_eq!(count(log.as_slice()).unwrap(), 256);
        // An incomplete last line does not count.
        let half = [log.clone(), entry("F", line)[..60].to_vec()].concat();
        assert_eq!(count(half.as_slice()).unwrap(), 256);
    }

    #[test]
    fn a_log_with_other_lines_is_an_error() {
        let mut wrong = LINE[..127].to_vec();
        wrong[5] ^= 1;
        for log in [entry("F", &wrong), entry("F", &LINE[..126]), entry("X", &LINE[..127]), b"x\n".to_vec()] {
            count(log.as_slice()).unwrap_err();
        }
    }
}
