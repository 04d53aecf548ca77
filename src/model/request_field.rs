/// A field of a request that an error is about. Its path on the wire is in the daemon's `convert`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestField {
    /// The runtime handler of a pod.
    RuntimeHandler,
    /// The metadata of the pod, as CreateContainer repeats it.
    PodMetadata,
    CgroupParent,
    Sysctls,
    PortMappings,
    /// The annotation with this key.
    Annotation(String),
    Image,
    ImageHandler,
    Command,
    Devices,
    CdiDevices,
    Mounts,
    /// The propagation of the mount with this index; so do the indexes below count.
    MountPropagation(usize),
    MountRelabel(usize),
    MountImage(usize),
    MountImageHandler(usize),
    MountImageSubPath(usize),
    Resources,
    OomScoreAdj,
    Privileged,
    Seccomp,
    Apparmor,
    SelinuxOptions,
    Capabilities,
    AmbientCapabilities,
    RunAsUser,
    RunAsUsername,
    RunAsGroup,
    SupplementalGroups,
    NetworkMode,
    PidMode,
    IpcMode,
    /// The container whose PID namespace a container joins.
    PidTarget,
    UserNamespace,
    /// The pod CIDR of UpdateRuntimeConfig.
    PodCidr,
}
