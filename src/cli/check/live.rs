//! `crisp check --live`: the whole path, from the socket to the kernel and back, with a pod that is gone afterwards.

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

/// The daemon, as it says of itself.
pub(super) async fn daemon(cri: &Cri, steps: &mut Steps) -> Result<DaemonInfo, Failed> {
    let ask = async {
        let status = cri.runtime().status(v1::StatusRequest { verbose: true }).await?.into_inner();
        let info: DaemonInfo = verbose_info::read(&status.info)?;
        let conditions = status.status.map(|status| status.conditions).unwrap_or_default();
        // A node without a network can still run pods that need none.
        let lacking = conditions.iter().filter(|condition| !condition.status);
        let lacking: String = lacking.map(|c| format!("; {} is false: {}", c.r#type, c.message)).collect();
        let words = format!("crisp {}, {} pods, {} containers{lacking}", info.release, info.pods, info.containers);
        Ok((info, words))
    };
    steps.step("ask the daemon", ask).await
}

/// Runs the pod through its whole life. Whatever it leaves, the caller clears away.
pub(super) async fn run(selftest: &Selftest, steps: &mut Steps) -> Result<(), Failed> {
    let import = async {
        let size = selftest.import().await?;
        Ok(((), format!("made of this program: {}", units::measured(size))))
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
        let said = selftest.exec(container, &["say", "hello"]).await?;
        if said == "hello" {
            Ok(((), said))
        } else {
            Err(SelftestError::Wrong(format!("it said {said:?}, not \"hello\"")))
        }
    };
    steps.step("exec in it", exec).await?;
    let stats = async {
        let stats = selftest.stats(container).await?;
        let cpu = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds).map_or(0, |value| value.value);
        let memory = stats.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |value| value.value);
        if cpu == 0 || memory == 0 {
            return Err(SelftestError::Wrong(format!(
                "it used {cpu} ns of CPU time and {memory} bytes: that cannot be"
            )));
        }
        Ok(((), format!("{} ms of CPU time, {}", cpu / 1_000_000, units::measured(memory))))
    };
    steps.step("read its stats", stats).await
}

/// Up and down again, the pod before its container and after it.
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
    let told = async {
        let shown = selftest.inspect(&container.id).await?.0.resources.and_then(|resources| resources.linux);
        let shown = shown.ok_or_else(|| SelftestError::Wrong("its status has no resources".to_owned()))?;
        let asked = SIZE.to_wire();
        let pair = |r: &v1::LinuxContainerResources| (r.cpu_quota, r.cpu_period, r.cpu_shares, r.memory_limit_in_bytes);
        if pair(&shown) == pair(&asked) {
            Ok(((), "what was asked".to_owned()))
        } else {
            Err(SelftestError::Wrong(format!("its status says {:?}, and {:?} was asked", pair(&shown), pair(&asked))))
        }
    };
    steps.step("read its status", told).await
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
            code => Err(SelftestError::Wrong(format!("it ended with {code}, not 0"))),
        }
    };
    steps.step("stop it", stop).await?;
    let remove = async {
        selftest.remove(container).await?;
        gone(&container.group)?;
        Ok(((), "its cgroup is gone".to_owned()))
    };
    steps.step("remove it", remove).await?;
    let clear = async {
        selftest.clear().await?;
        gone(&pod.group)?;
        Ok(((), "nothing is left".to_owned()))
    };
    steps.step("remove pod and image", clear).await
}

/// Whether the kernel has this in force: what it says.
fn expect(group: &Cgroup, size: PodSize) -> Result<String, SelftestError> {
    let ObservedLimits { cpu_quota, cpu_period, memory, .. } = observed(group)?;
    let quota = size.millis * units::PERIOD / 1000;
    let (quota, period, bytes) = (Some(Micros(quota)), Some(Micros(units::PERIOD)), Some(Bytes(size.mib << 20)));
    if (cpu_quota, cpu_period, memory) == (quota, period, bytes) {
        return Ok(format!(
            "the kernel has cpu {}, memory {}",
            units::millis(size.millis),
            units::bytes(size.mib << 20)
        ));
    }
    let has = format!("quota {cpu_quota:?}, period {cpu_period:?}, memory {memory:?}");
    Err(SelftestError::Wrong(format!(
        "the kernel has {has} for {}, not {quota:?}, {period:?}, {bytes:?}",
        group.path()
    )))
}

fn gone(group: &Cgroup) -> Result<(), SelftestError> {
    if group.exists() {
        Err(SelftestError::Wrong(format!("the cgroup {} is still there", group.path())))
    } else {
        Ok(())
    }
}
