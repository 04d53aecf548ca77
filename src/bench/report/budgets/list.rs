//! The list of budgets.

use super::Limit::{AtLeast, AtMost};
use super::{Budget, Limit, Metric};
use crate::args::ImageSize;
use crate::{background_pods, lifecycle, pull, reads, stream};

/// The image of `hack/dev bench pull`.
const LARGE: ImageSize = ImageSize { layers: 20, mib: 500 };
/// The image of `hack/dev bench pull --pull-size 1x2`.
const SMALL: ImageSize = ImageSize { layers: 1, mib: 2 };

const fn budget(what: &'static str, of: Metric, limit: Limit, words: &'static str) -> Budget {
    Budget { what, of, limit, words }
}

const fn peer(figure: &'static str) -> Metric {
    Metric::Peer(figure)
}

/// With the built-in network.
const fn life(figure: &'static str) -> Metric {
    Metric::PeerWith { figure, same_cni: false }
}

const fn teardown_on(filesystem: &'static str) -> Metric {
    Metric::PeerOn { figure: lifecycle::TEARDOWN, filesystem }
}

const fn memory(figure: &'static str, containers: usize) -> Metric {
    Metric::At { figure, containers }
}

/// With this number of pods, compared with 10.
const fn growth(figure: &'static str, many: usize) -> Metric {
    Metric::Growth { figure, few: 10, many }
}

pub(crate) const BUDGETS: &[Budget] = &[
    budget("pod + container ready, built-in network", life(lifecycle::READY), AtMost(1.0 / 14.0), "life"),
    budget(
        "pod + container ready, the same CNI plugins",
        Metric::PeerWith { figure: lifecycle::READY, same_cni: true },
        AtMost(1.0 / 7.0),
        "life --cni",
    ),
    budget("pod + container ready, to the baseline", Metric::Floor(lifecycle::READY), AtMost(3.3), "life floor"),
    budget("CreateContainer", life(lifecycle::CREATE), AtMost(0.8), "life"),
    budget("StartContainer", life(lifecycle::START), AtMost(1.0 / 40.0), "life"),
    budget("teardown, tmpfs", teardown_on("tmpfs"), AtMost(1.0 / 28.0), "life"),
    budget("teardown, ext4", teardown_on("ext4"), AtMost(1.0 / 12.0), "life --on ext4"),
    budget("CPU time of a pod's life", life(lifecycle::CPU), AtMost(1.0 / 20.0), "life"),
    budget(
        "lives per CPU second, four at once to one",
        Metric::Own { figure: lifecycle::TOGETHER_PER_CPU, by: lifecycle::ALONE_PER_CPU },
        AtLeast(0.95),
        "life",
    ),
    budget("ExecSync", peer(reads::EXEC), AtMost(1.0 / 20.0), "exec"),
    budget("UpdateContainerResources, memory", peer(reads::UPDATE_MEMORY), AtMost(1.0 / 30.0), "update"),
    budget("UpdateContainerResources, CPU", peer(reads::UPDATE_CPU), AtMost(1.0 / 30.0), "update"),
    budget("Status", peer(reads::RUNTIME_STATUS), AtMost(1.0), "status"),
    budget("PodSandboxStatus", peer(reads::POD_STATUS), AtMost(1.0), "status"),
    budget("ContainerStatus", peer(reads::STATUS), AtMost(1.0), "status"),
    budget("ImageFsInfo", peer(reads::IMAGE_FS), AtMost(1.0), "status"),
    budget(
        "ListContainerStats of 50",
        Metric::PeerAt { figure: reads::STATS, containers: 50 },
        AtMost(1.0 / 30.0),
        "stats",
    ),
    budget("shim of a pod, 25 pods", memory(background_pods::SHIM, 50), AtMost(0.8), "scale"),
    budget("private memory of a shim, 25 pods", memory(background_pods::SHIM_PRIVATE, 50), AtMost(0.115), "scale"),
    budget("daemon with 50 containers", memory(background_pods::DAEMON, 50), AtMost(13.0), "scale"),
    budget("daemon with 400 containers", memory(background_pods::DAEMON, 400), AtMost(21.0), "scale"),
    budget("program of the daemon", Metric::Size(background_pods::PROGRAM_SIZE), AtMost(14.5), "scale"),
    budget("ready with 400 pods to 10", growth(lifecycle::READY, 400), AtMost(1.3), "scale"),
    budget("Status with 300 pods to 10", growth(reads::RUNTIME_STATUS, 300), AtMost(1.5), "scale"),
    budget("ExecSync with 200 pods to 10", growth(reads::EXEC, 200), AtMost(1.5), "scale"),
    budget("ContainerStatus with 200 pods to 10", growth(reads::STATUS, 200), AtMost(1.5), "scale"),
    budget("exec output, bytes a second", peer(stream::EXEC), AtLeast(2.0), "stream"),
    budget("forwarded port, bytes a second", peer(stream::FORWARD), AtLeast(2.0), "stream"),
    budget("log, processor time for the same bytes", peer(stream::LOG_CPU), AtMost(1.0 / 2.0), "stream"),
    budget(
        "pull of 20 layers and 500 MiB",
        Metric::PeerPull { figure: pull::ABSENT, image: LARGE },
        AtMost(1.0 / 3.0),
        "pull",
    ),
    budget("its peak memory", Metric::PeerPull { figure: pull::PEAK, image: LARGE }, AtMost(1.0 / 2.0), "pull"),
    budget(
        "pull of 1 layer and 2 MiB",
        Metric::PeerPull { figure: pull::ABSENT, image: SMALL },
        AtMost(1.0 / 2.0),
        "pull --pull-size 1x2",
    ),
    budget("pull of an image that is present", peer(pull::PRESENT), AtMost(1.0 / 3.0), "pull"),
    budget("RemoveImage", peer(pull::REMOVE), AtMost(1.0), "pull"),
];
