//! Measures the throughput of the streaming server, and the cost of logging container output.

mod client;
mod log;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use client::Error;
use cri_api::v1;
use tokio::task::spawn_blocking;

use super::args::BenchArgs;
use super::lifecycle;
pub(crate) use super::report::results::{Figures, Unit};
use super::runtime::{Client, Pod, Runtime, in_turns};

pub(super) const EXEC: &str = "exec output";
pub(super) const FORWARD: &str = "forwarded port";
pub(super) const LOG_CPU: &str = "log: processor time of daemon and shim";

const MIB: u64 = 1 << 20;

pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) {
    in_turns(runtimes, plan.rounds.div_ceil(8), async |runtime, round| {
        if let Some(pod) = Box::pin(prepare(runtime, round)).await {
            Box::pin(both_streams(runtime, &pod, u64::from(plan.stream_mib) * MIB)).await;
        }
        Box::pin(log::measure(runtime, round, u64::from(plan.log_mib))).await;
        runtime.clear().await;
    })
    .await;
}

/// Creates a pod with an unlimited container. The pod uses the host's network, so that this process
/// can listen on the forwarded port.
async fn prepare(runtime: &mut Runtime, round: u32) -> Option<Pod> {
    let Runtime { client, figures, shape, pods, .. } = runtime;
    let mut shape = shape.clone();
    shape.host_network = true;
    let config = shape.pod(&format!("stream-{round}"));
    let mut steps = Figures::default();
    let run = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let made = steps.time("RunPodSandbox", client.run_pod_sandbox(run)).await;
    if let Some(answer) = made {
        let mut pod = Pod { id: answer.pod_sandbox_id, containers: Vec::new() };
        let container = shape.unlimited("main", &super::processes::PROGRAM);
        let added = Box::pin(lifecycle::add(client, &mut steps, &mut pod, config, container)).await;
        pods.push(pod.clone());
        if added.is_some() {
            return Some(pod);
        }
    }
    figures.add_failures(&steps);
    None
}

async fn both_streams(runtime: &mut Runtime, pod: &Pod, bytes: u64) {
    let Some(container) = pod.containers.first() else { return };
    let before = runtime.cpu();
    let ran = exec(&mut runtime.client, container, bytes).await;
    note(runtime, EXEC, bytes, ran);
    runtime.note_cpu("exec output: processor time", before, 1);
    let before = runtime.cpu();
    let forwarded = forward(&mut runtime.client, &pod.id, bytes).await;
    note(runtime, FORWARD, bytes, forwarded);
    runtime.note_cpu("forwarded port: processor time", before, 1);
}

fn note(runtime: &mut Runtime, name: &str, bytes: u64, took: Result<Duration, Error>) {
    // Exact: streams are far shorter than 2^53 bytes.
    #[allow(clippy::cast_precision_loss, reason = "a rate, not a count")]
    let rate = took.map(|took| bytes as f64 / 1e6 / took.as_secs_f64());
    runtime.figures.note(name, Unit::MBPerSecond, rate);
}

/// Runs a command that prints `bytes` bytes, and reads its output over SPDY.
async fn exec(client: &mut Client, container: &str, bytes: u64) -> Result<Duration, Error> {
    let blocks = format!("count={}", bytes / MIB);
    let cmd = ["dd", "if=/dev/zero", "bs=1M", &blocks];
    let request = v1::ExecRequest {
        container_id: container.to_owned(),
        cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
        stdout: true,
        ..Default::default()
    };
    let begin = Instant::now();
    let url = client.exec(request).await.map_err(|status| Error::Asked(status.message().to_owned()))?.into_inner().url;
    let got = spawn_blocking(move || client::exec(&url)).await.map_err(|_| Error::Panic)??;
    if got != bytes {
        return Err(Error::Bytes { want: bytes, got });
    }
    Ok(begin.elapsed())
}

/// Reads `bytes` bytes from a forwarded port of the pod; the pod uses the host's network.
async fn forward(client: &mut Client, pod: &str, bytes: u64) -> Result<Duration, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::Io)?;
    let port = listener.local_addr().map_err(Error::Io)?.port();
    let request = v1::PortForwardRequest { pod_sandbox_id: pod.to_owned(), port: vec![i32::from(port)] };
    let asked = client.port_forward(request).await;
    let url = asked.map_err(|status| Error::Asked(status.message().to_owned()))?.into_inner().url;
    let begin = Instant::now();
    let served = spawn_blocking(move || serve(&listener, bytes));
    let taken = spawn_blocking(move || client::forward(&url, port));
    let got = taken.await.map_err(|_| Error::Panic)?;
    if got.is_err() {
        // The runtime may never connect: this connection unblocks `serve`.
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok();
    }
    let served = served.await.map_err(|_| Error::Panic)?;
    let got = got?;
    if got != bytes {
        return Err(Error::Bytes { want: bytes, got });
    }
    served.map_err(Error::Io)?;
    Ok(begin.elapsed())
}

/// Sends `bytes` bytes to the first client.
fn serve(listener: &TcpListener, bytes: u64) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_write_timeout(Some(client::PATIENCE))?;
    let block = vec![0u8; 256 << 10];
    let mut left = usize::try_from(bytes).map_err(io::Error::other)?;
    while left > 0 {
        let some = left.min(block.len());
        stream.write_all(&block[..some])?;
        left -= some;
    }
    stream.shutdown(std::net::Shutdown::Write)
}
