//! `crisp check --live`: creates, uses, resizes and removes a pod through the daemon, and checks the kernel's values.

use cgroup::Cgroup;
use cri_api::v1;
use model::resources::{Bytes, Micros, ObservedLimits};

use super::super::client::Cri;
use super::super::selftest::{
    Failed, PodSize, Selftest, SelftestContainer, SelftestError, SelftestPod, Steps, observed,
};
use super::super::verbose_info::DaemonInfo;
use super::super::{units, verbose_info};

const SIZE: PodSize = PodSize { millis: 200, mib: 64 };
const LARGER: PodSize = PodSize { millis: 400, mib: 96 };

/// Queries the daemon's status.
pub(super) async fn daemon(cri: &Cri, steps: &mut Steps) -> Result<DaemonInfo, Failed> {
    let ask = async {
        let status = cri.runtime().status(v1::StatusRequest { verbose: true }).await?.into_inner();
        let info: DaemonInfo = verbose_info::read(&status.info)?;
        let conditions = status.status.map(|status| status.conditions).unwrap_or_default();
        // A false condition is not a failure: without a network, pods of the host network still run.
        let lacking = conditions.iter().filter(|condition| !condition.status);
        let lacking: String = lacking.map(|c| format!("; {} is false: {}", c.r#type, c.message)).collect();
        let words = format!("crisp {}, {} pods, {} containers{lacking}", info.release, info.pods, info.containers);
        Ok((info, words))
    };
    steps.step("query the daemon", ask).await
}

/// Runs all steps with the pod. After a failure the caller removes what is left.
pub(super) async fn run(selftest: &Selftest, steps: &mut Steps) -> Result<(), Failed> {
    let import = async {
        let size = selftest.import().await?;
        Ok(((), format!("built from this program, {}", units::measured(size))))
    };
    steps.step("import an image", import).await?;
    let run = async {
        let pod = selftest.run_pod(SIZE).await?;
        expect(&pod.group, SIZE)?;
        let address = selftest.address(&pod).await?.unwrap_or_else(|| "no network".to_owned());
        Ok((pod, address))
    };
    let pod = steps.step("run a pod", run).await?;
    let container = begin(selftest, steps, &pod).await?;
    use_it(selftest, steps, &container).await?;
    resize(selftest, steps, &pod, &container).await?;
    end(selftest, steps, &pod, &container).await
}

async fn begin(selftest: &Selftest, steps: &mut Steps, pod: &SelftestPod) -> Result<SelftestContainer, Failed> {
    let create = async {
        let made = selftest.create(pod, "app", "idle", SIZE).await?;
        let words = expect(&made.group, SIZE)?;
        Ok((made, words))
    };
    let container = steps.step("create a container", create).await?;
    let start = async {
        selftest.start(&container).await?;
        let pid = selftest.inspect(&container.id).await?.1.pid;
        let pid = pid.ok_or_else(|| SelftestError::Wrong("a running container has no process".to_owned()))?;
        Ok(((), format!("pid {pid}")))
    };
    steps.step("start it", start).await?;
    Ok(container)
}

async fn use_it(selftest: &Selftest, steps: &mut Steps, container: &SelftestContainer) -> Result<(), Failed> {
    let logs = async {
        let path = selftest.wait_for_line(container, " stdout F ready").await?;
        Ok(((), path.display().to_string()))
    };
    steps.step("read its log", logs).await?;
    let exec = async {
        let output = selftest.exec(container, &["say", "hello"]).await?;
        if output == "hello" {
            Ok(((), output))
        } else {
            Err(SelftestError::Wrong(format!("unexpected output {output:?}: expected \"hello\"")))
        }
    };
    steps.step("exec in it", exec).await?;
    let stats = async {
        let stats = selftest.stats(container).await?;
        let cpu = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds).map_or(0, |value| value.value);
        let memory = stats.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |value| value.value);
        if cpu == 0 || memory == 0 {
            return Err(SelftestError::Wrong(format!(
                "stats report {cpu} ns of CPU time and {memory} bytes of memory: expected more than 0"
            )));
        }
        Ok(((), format!("{} ms of CPU time, {}", cpu / 1_000_000, units::measured(memory))))
    };
    steps.step("read its stats", stats).await
}

/// Resizes up, the pod before the container, and down again, the pod after the container.
async fn resize(
    selftest: &Selftest,
    steps: &mut Steps,
    pod: &SelftestPod,
    container: &SelftestContainer,
) -> Result<(), Failed> {
    let up = async {
        selftest.update_pod(pod, LARGER.to_wire()).await?;
        selftest.update(container, LARGER.to_wire()).await?;
        expect(&pod.group, LARGER)?;
        Ok(((), expect(&container.group, LARGER)?))
    };
    steps.step("resize it up", up).await?;
    let down = async {
        selftest.update(container, SIZE.to_wire()).await?;
        selftest.update_pod(pod, SIZE.to_wire()).await?;
        expect(&pod.group, SIZE)?;
        Ok(((), expect(&container.group, SIZE)?))
    };
    steps.step("resize it down", down).await?;
    let status = async {
        let shown = selftest.inspect(&container.id).await?.0.resources.and_then(|resources| resources.linux);
        let shown = shown.ok_or_else(|| SelftestError::Wrong("status reports no resources".to_owned()))?;
        let asked = SIZE.to_wire();
        let pair = |r: &v1::LinuxContainerResources| (r.cpu_quota, r.cpu_period, r.cpu_shares, r.memory_limit_in_bytes);
        if pair(&shown) == pair(&asked) {
            Ok(((), "limits as requested".to_owned()))
        } else {
            Err(SelftestError::Wrong(format!("status reports {:?}: expected {:?}", pair(&shown), pair(&asked))))
        }
    };
    steps.step("read its status", status).await
}

async fn end(
    selftest: &Selftest,
    steps: &mut Steps,
    pod: &SelftestPod,
    container: &SelftestContainer,
) -> Result<(), Failed> {
    let stop = async {
        match selftest.stop(container).await? {
            0 => Ok(((), "exit code 0".to_owned())),
            code => Err(SelftestError::Wrong(format!("exit code {code}: expected 0"))),
        }
    };
    steps.step("stop it", stop).await?;
    let remove = async {
        selftest.remove(container).await?;
        gone(&container.group)?;
        Ok(((), "cgroup removed".to_owned()))
    };
    steps.step("remove it", remove).await?;
    let clear = async {
        selftest.clear().await?;
        gone(&pod.group)?;
        Ok(((), "nothing left".to_owned()))
    };
    steps.step("remove pod and image", clear).await
}

/// Checks that the kernel's limits are those of `size`, and returns them as text.
fn expect(group: &Cgroup, size: PodSize) -> Result<String, SelftestError> {
    let ObservedLimits { cpu_quota, cpu_period, memory, .. } = observed(group)?;
    let quota = size.millis * units::PERIOD / 1000;
    let (quota, period, bytes) = (Some(Micros(quota)), Some(Micros(units::PERIOD)), Some(Bytes(size.mib << 20)));
    if (cpu_quota, cpu_period, memory) == (quota, period, bytes) {
        return Ok(format!(
            "kernel limits: cpu {}, memory {}",
            units::millis(size.millis),
            units::bytes(size.mib << 20)
        ));
    }
    let has = format!("quota {cpu_quota:?}, period {cpu_period:?}, memory {memory:?}");
    Err(SelftestError::Wrong(format!(
        "the kernel has {has} for {}: expected {quota:?}, {period:?}, {bytes:?}",
        group.path()
    )))
}

fn gone(group: &Cgroup) -> Result<(), SelftestError> {
    if group.exists() { Err(SelftestError::Wrong(format!("cgroup {} still exists", group.path()))) } else { Ok(()) }
}
