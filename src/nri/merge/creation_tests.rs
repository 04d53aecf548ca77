use super::{Allow, Created, Creation, Group, MergeError, Owner};
use crate::api::*;

/// The container before any change.
fn container() -> Container {
    let mount = |destination: &str, source: &str| Mount {
        destination: destination.to_owned(),
        source: source.to_owned(),
        ..Mount::default()
    };
    Container {
        id: "c".to_owned(),
        env: vec!["PATH=/bin".to_owned(), "OLD=1".to_owned()],
        args: vec!["sh".to_owned()],
        mounts: vec![mount("/a", "spec"), mount("/b/", "spec")],
        annotations: [("kept".to_owned(), "1".to_owned()), ("old".to_owned(), "1".to_owned())].into(),
        rlimits: vec![limit("RLIMIT_NOFILE", 1)],
        linux: Some(LinuxContainer {
            devices: vec![device("/dev/null"), device("/dev/old")],
            namespaces: vec![namespace("ipc", ""), namespace("network", "/run/net")],
            sysctl: [("net.a".to_owned(), "1".to_owned())].into(),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

fn mount(destination: &str, source: &str) -> Mount {
    Mount { destination: destination.to_owned(), source: source.to_owned(), ..Mount::default() }
}

fn device(path: &str) -> LinuxDevice {
    LinuxDevice { path: path.to_owned(), r#type: "c".to_owned(), ..LinuxDevice::default() }
}

fn namespace(kind: &str, path: &str) -> LinuxNamespace {
    LinuxNamespace { r#type: kind.to_owned(), path: path.to_owned() }
}

fn limit(kind: &str, hard: u64) -> PosixRlimit {
    PosixRlimit { r#type: kind.to_owned(), hard, soft: hard }
}

fn env(items: &[(&str, &str)]) -> ContainerAdjustment {
    let env = items.iter().map(|(key, value)| KeyValue { key: (*key).to_owned(), value: (*value).to_owned() });
    ContainerAdjustment { env: env.collect(), ..ContainerAdjustment::default() }
}

fn mounts(mounts: Vec<Mount>) -> ContainerAdjustment {
    ContainerAdjustment { mounts, ..ContainerAdjustment::default() }
}

fn linux(linux: LinuxContainerAdjustment) -> ContainerAdjustment {
    ContainerAdjustment { linux: Some(linux), ..ContainerAdjustment::default() }
}

fn resources(resources: LinuxResources) -> ContainerAdjustment {
    linux(LinuxContainerAdjustment { resources: Some(resources), ..LinuxContainerAdjustment::default() })
}

fn add(creation: &mut Creation, plugin: &str, adjust: ContainerAdjustment) -> Result<(), MergeError> {
    let all = [Group::Hooks, Group::Seccomp, Group::Namespaces, Group::Sysctl, Group::CgroupsPath];
    let answer = CreateContainerResponse { adjust: Some(adjust), ..CreateContainerResponse::default() };
    creation.add(plugin, &Allow::default().with(all), answer)
}

/// Merges answers of 10-a, 20-b and so on; returns the result and the container that is shown next.
fn merged(answers: Vec<ContainerAdjustment>) -> Result<(Created, Container), MergeError> {
    let mut creation = Creation::new(container());
    for (name, adjust) in ["10-a", "20-b", "30-c"].into_iter().zip(answers) {
        add(&mut creation, name, adjust)?;
    }
    let shown = creation.container().clone();
    Ok((creation.finish(), shown))
}

fn conflict(field: Field, key: &str) -> MergeError {
    let (first, second) = ("10-a".to_owned(), "20-b".to_owned());
    MergeError::Conflict { field, key: key.to_owned(), first, second }
}

#[test]
fn answers_of_nothing_change_nothing() {
    let (created, shown) = merged(vec![ContainerAdjustment::default(); 2]).unwrap();
    assert_eq!(shown, container());
    let linux = created.adjust.linux.unwrap();
    assert_eq!(linux.resources, Some(LinuxResources::default()));
    assert_eq!(created.adjust.mounts, []);
    assert_eq!(created.owners.iter().count(), 0);
}

#[test]
fn a_second_plugin_that_sets_the_same_key_is_a_conflict() {
    let both = |adjust: ContainerAdjustment| merged(vec![adjust.clone(), adjust]).unwrap_err();
    let annotations = [("k".to_owned(), "v".to_owned())].into();
    let adjust = ContainerAdjustment { annotations, ..ContainerAdjustment::default() };
    assert_eq!(both(adjust), conflict(Field::Annotations, "k"));
    assert_eq!(both(mounts(vec![mount("/z", "x")])), conflict(Field::Mounts, "/z"));
    assert_eq!(both(env(&[("A", "1")])), conflict(Field::Env, "A"));
    let args = ContainerAdjustment { args: vec!["x".to_owned()], ..ContainerAdjustment::default() };
    assert_eq!(both(args), conflict(Field::Args, ""));
    let rlimits = ContainerAdjustment { rlimits: vec![limit("RLIMIT_CORE", 1)], ..ContainerAdjustment::default() };
    assert_eq!(both(rlimits), conflict(Field::Rlimits, "RLIMIT_CORE"));
    let cdi_devices = vec![CdiDevice { name: "v.com/c=d".to_owned() }];
    let cdi = ContainerAdjustment { cdi_devices, ..ContainerAdjustment::default() };
    assert_eq!(both(cdi), conflict(Field::CdiDevices, "v.com/c=d"));
    let none = LinuxContainerAdjustment::default;
    let devices = linux(LinuxContainerAdjustment { devices: vec![device("/dev/x")], ..none() });
    assert_eq!(both(devices), conflict(Field::Devices, "/dev/x"));
    let namespaces = linux(LinuxContainerAdjustment { namespaces: vec![namespace("uts", "")], ..none() });
    assert_eq!(both(namespaces), conflict(Field::Namespace, "uts"));
    let sysctl = [("net.b".to_owned(), "2".to_owned())].into();
    assert_eq!(both(linux(LinuxContainerAdjustment { sysctl, ..none() })), conflict(Field::Sysctl, "net.b"));
    let path = linux(LinuxContainerAdjustment { cgroups_path: "/x".to_owned(), ..none() });
    assert_eq!(both(path), conflict(Field::CgroupsPath, ""));
    let score = linux(LinuxContainerAdjustment { oom_score_adj: Some(OptionalInt { value: 0 }), ..none() });
    assert_eq!(both(score), conflict(Field::OomScoreAdj, ""));
    let seccomp = linux(LinuxContainerAdjustment { seccomp_policy: Some(LinuxSeccomp::default()), ..none() });
    assert_eq!(both(seccomp), conflict(Field::SeccompPolicy, ""));
}

#[test]
fn a_second_plugin_that_sets_the_same_limit_is_a_conflict() {
    let both = |limits: LinuxResources| merged(vec![resources(limits.clone()), resources(limits)]).unwrap_err();
    let none = LinuxResources::default;
    let seven = Some(OptionalInt64 { value: 7 });
    let memory = |memory| LinuxResources { memory: Some(memory), ..none() };
    assert_eq!(both(memory(LinuxMemory { limit: seven, ..Default::default() })), conflict(Field::MemLimit, ""));
    assert_eq!(
        both(memory(LinuxMemory { reservation: seven, ..Default::default() })),
        conflict(Field::MemReservation, "")
    );
    assert_eq!(both(memory(LinuxMemory { swap: seven, ..Default::default() })), conflict(Field::MemSwapLimit, ""));
    let cpu = |cpu| LinuxResources { cpu: Some(cpu), ..none() };
    let unsigned = Some(OptionalUInt64 { value: 7 });
    assert_eq!(both(cpu(LinuxCpu { shares: unsigned, ..Default::default() })), conflict(Field::CpuShares, ""));
    assert_eq!(both(cpu(LinuxCpu { quota: seven, ..Default::default() })), conflict(Field::CpuQuota, ""));
    assert_eq!(both(cpu(LinuxCpu { period: unsigned, ..Default::default() })), conflict(Field::CpuPeriod, ""));
    let cpus = "0-1".to_owned();
    assert_eq!(both(cpu(LinuxCpu { cpus, ..Default::default() })), conflict(Field::CpuSetCpUs, ""));
    let mems = "0".to_owned();
    assert_eq!(both(cpu(LinuxCpu { mems, ..Default::default() })), conflict(Field::CpuSetMems, ""));
    let pids = LinuxResources { pids: Some(LinuxPids { limit: 3 }), ..none() };
    assert_eq!(both(pids), conflict(Field::PidsLimit, ""));
    let hugepage_limits = vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 1 }];
    assert_eq!(both(LinuxResources { hugepage_limits, ..none() }), conflict(Field::HugepageLimits, "2MB"));
    let unified = [("memory.high".to_owned(), "1".to_owned())].into();
    assert_eq!(both(LinuxResources { unified, ..none() }), conflict(Field::CgroupsUnified, "memory.high"));
}

#[test]
fn a_pure_removal_of_each_kind_is_kept_and_hidden_from_later_plugins() {
    let adjust = ContainerAdjustment {
        annotations: [("-old".to_owned(), String::new())].into(),
        mounts: vec![mount("-/b", "")],
        linux: Some(LinuxContainerAdjustment {
            devices: vec![device("-/dev/old")],
            namespaces: vec![namespace("-network", "")],
            sysctl: [("-net.a".to_owned(), String::new())].into(),
            ..LinuxContainerAdjustment::default()
        }),
        ..env(&[("-OLD", "")])
    };
    let (created, shown) = merged(vec![adjust]).unwrap();
    assert_eq!(shown.annotations.keys().collect::<Vec<_>>(), ["kept"]);
    assert_eq!(shown.mounts.iter().map(|mount| &mount.destination[..]).collect::<Vec<_>>(), ["/a"]);
    assert_eq!(shown.env, ["PATH=/bin"]);
    let linux = shown.linux.unwrap();
    assert_eq!((linux.devices.len(), linux.namespaces.len(), linux.sysctl.len()), (1, 1, 0));
    let adjust = created.adjust;
    assert_eq!(adjust.annotations.keys().collect::<Vec<_>>(), ["-old"]);
    assert_eq!((&adjust.mounts[0].destination[..], &adjust.env[0].key[..]), ("-/b", "-OLD"));
    let linux = adjust.linux.unwrap();
    assert_eq!((&linux.devices[0].path[..], &linux.namespaces[0].r#type[..]), ("-/dev/old", "-network"));
    assert_eq!(linux.sysctl.keys().collect::<Vec<_>>(), ["-net.a"]);
}

#[test]
fn a_plugin_takes_a_key_over_with_a_removal_that_may_stand_after_the_value() {
    for second in [vec![mount("-/z", ""), mount("/z", "new")], vec![mount("/z", "new"), mount("-/z", "")]] {
        let (created, shown) = merged(vec![mounts(vec![mount("/z", "first")]), mounts(second)]).unwrap();
        assert_eq!(created.adjust.mounts, [mount("/z", "new")]);
        assert_eq!(created.owners.get(Field::Mounts, "/z"), Some("20-b"));
        assert_eq!(shown.mounts.iter().filter(|mount| mount.destination == "/z").count(), 1);
    }
    let args = |args: &[&str]| ContainerAdjustment {
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..ContainerAdjustment::default()
    };
    let (created, shown) = merged(vec![args(&["a"]), args(&["", "b", "c"])]).unwrap();
    assert_eq!(
        (created.adjust.args, shown.args),
        (vec!["b".to_owned(), "c".to_owned()], vec!["b".to_owned(), "c".to_owned()])
    );
}

#[test]
fn only_the_plugin_that_removed_a_key_may_set_it() {
    let refused = merged(vec![env(&[("-A", "")]), env(&[("A", "1")])]).unwrap_err();
    assert_eq!(refused, conflict(Field::Env, "A"));
    merged(vec![env(&[("-A", "")]), env(&[("-A", ""), ("A", "1")])]).unwrap();
}

#[test]
fn a_key_that_is_set_twice_has_its_last_value_and_replaces_that_of_the_container() {
    let adjust = env(&[("OLD", "2"), ("NEW", "1"), ("OLD", "3")]);
    let (created, shown) = merged(vec![adjust]).unwrap();
    assert_eq!(shown.env, ["PATH=/bin", "NEW=1", "OLD=3"]);
    assert_eq!(created.adjust.env.len(), 2);
    let rlimits = vec![limit("RLIMIT_NOFILE", 5), limit("RLIMIT_NOFILE", 6)];
    let (created, shown) = merged(vec![ContainerAdjustment { rlimits, ..Default::default() }]).unwrap();
    assert_eq!(
        (created.adjust.rlimits, shown.rlimits),
        (vec![limit("RLIMIT_NOFILE", 6)], vec![limit("RLIMIT_NOFILE", 6)])
    );
}

#[test]
fn paths_are_the_same_key_however_they_are_written() {
    let refused = merged(vec![mounts(vec![mount("/z/y", "1")]), mounts(vec![mount("//z/./y/", "2")])]).unwrap_err();
    assert_eq!(refused, conflict(Field::Mounts, "/z/y"));
    let (_, shown) = merged(vec![mounts(vec![mount("/b", "new")])]).unwrap();
    assert_eq!(shown.mounts.len(), 2, "the mount of the container at /b/ is replaced");
}

#[test]
fn hooks_are_added_by_all_plugins_and_owned_by_all() {
    let hook = |path: &str| Hook { path: path.to_owned(), ..Hook::default() };
    let hooks = |path: &str| ContainerAdjustment {
        hooks: Some(Hooks { poststop: vec![hook(path)], ..Hooks::default() }),
        ..ContainerAdjustment::default()
    };
    let (created, shown) = merged(vec![hooks("/a"), hooks("/b")]).unwrap();
    assert_eq!(created.adjust.hooks.unwrap().poststop, [hook("/a"), hook("/b")]);
    assert_eq!(shown.hooks.unwrap().poststop.len(), 2);
    let owners: Vec<_> = created.owners.iter().collect();
    assert_eq!(owners, [Owner { field: Field::OciHooks, key: "", plugin: "10-a,20-b" }]);
}

#[test]
fn limits_of_all_plugins_are_laid_over_those_of_the_container() {
    let pids = resources(LinuxResources { pids: Some(LinuxPids { limit: 3 }), ..LinuxResources::default() });
    let shares = Some(OptionalUInt64 { value: 512 });
    let quota = Some(OptionalInt64 { value: 0 });
    let cpu = Some(LinuxCpu { shares, quota, ..LinuxCpu::default() });
    let rule = LinuxDeviceCgroup { allow: true, r#type: "c".to_owned(), ..LinuxDeviceCgroup::default() };
    let cpu = resources(LinuxResources { cpu, devices: vec![rule], ..LinuxResources::default() });
    let (created, shown) = merged(vec![pids, cpu]).unwrap();
    let merged = created.adjust.linux.unwrap().resources.unwrap();
    assert_eq!(merged.pids.unwrap().limit, 3);
    assert_eq!((merged.cpu.as_ref().unwrap().shares, merged.cpu.unwrap().quota), (shares, None));
    assert_eq!(merged.devices.len(), 1);
    assert_eq!(shown.linux.unwrap().resources.unwrap().pids.unwrap().limit, 3);
    assert_eq!(created.owners.get(Field::CpuQuota, ""), None, "0 means as before");
}

#[test]
fn groups_are_refused_unless_they_are_allowed() {
    let mut creation = Creation::new(container());
    let sysctl = [("net.b".to_owned(), "1".to_owned())].into();
    let adjust = Some(linux(LinuxContainerAdjustment { sysctl, ..LinuxContainerAdjustment::default() }));
    let answer = CreateContainerResponse { adjust, ..CreateContainerResponse::default() };
    let refused = creation.add("10-a", &Allow::default(), answer.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "plugin \"10-a\" may not change sysctl: allow \"sysctl\" for it in the section `nri`"
    );
    creation.add("10-a", &Allow::from_iter([Group::Sysctl]), answer).unwrap();
    let adjust = Some(env(&[("A", "1")]));
    let answer = CreateContainerResponse { adjust, ..CreateContainerResponse::default() };
    let refused = creation.add("10-a", &Allow::from_iter([Group::Sysctl]), answer).unwrap_err();
    assert_eq!(refused, MergeError::NotAllowed { plugin: "10-a".to_owned(), group: Group::Env });
}

#[test]
fn fields_that_crisp_does_not_have_are_refused_by_name() {
    let name = |adjust| match merged(vec![adjust]) {
        Err(MergeError::NotSupported { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let none = LinuxContainerAdjustment::default;
    let io = LinuxContainerAdjustment { io_priority: Some(LinuxIoPriority::default()), ..none() };
    assert_eq!(name(linux(io)), "linux.io_priority");
    let scheduler = LinuxContainerAdjustment { scheduler: Some(LinuxScheduler::default()), ..none() };
    assert_eq!(name(linux(scheduler)), "linux.scheduler");
    assert_eq!(name(linux(LinuxContainerAdjustment { rdt: Some(LinuxRdt::default()), ..none() })), "linux.rdt");
    let policy = LinuxContainerAdjustment { memory_policy: Some(LinuxMemoryPolicy::default()), ..none() };
    assert_eq!(name(linux(policy)), "linux.memory_policy");
    let net_devices = [("eth1".to_owned(), LinuxNetDevice::default())].into();
    assert_eq!(name(linux(LinuxContainerAdjustment { net_devices, ..none() })), "linux.net_devices");
    let class = |value: &str| Some(OptionalString { value: value.to_owned() });
    let rdt = LinuxResources { rdt_class: class("gold"), ..LinuxResources::default() };
    assert_eq!(name(resources(rdt)), "rdt_class");
    let memory = Some(LinuxMemory { swappiness: Some(OptionalUInt64 { value: 60 }), ..LinuxMemory::default() });
    assert_eq!(name(resources(LinuxResources { memory, ..Default::default() })), "memory.swappiness");
    // Empty ones change nothing.
    let empty = LinuxResources { rdt_class: class(""), blockio_class: class(""), ..LinuxResources::default() };
    merged(vec![resources(empty)]).unwrap();
}

#[test]
fn values_that_no_container_can_have_are_refused() {
    let bad = |adjust: ContainerAdjustment| {
        let refused = merged(vec![adjust]).unwrap_err();
        assert!(matches!(refused, MergeError::Invalid { .. }), "{refused}");
        refused.to_string()
    };
    for key in ["", "-", "A=B", "A\0"] {
        bad(env(&[(key, "1")]));
    }
    let text = bad(env(&[("A", "secret\0")]));
    assert!(!text.contains("secret"), "{text}");
    for destination in ["", "/", "relative", "/a/../b", "../..", "-", "/a\0", "-/../x"] {
        bad(mounts(vec![mount(destination, "x")]));
    }
    for key in ["io.crisp.x", "-io.crisp.x", "cdi.k8s.io/x", "", "a\0"] {
        let annotations = [(key.to_owned(), String::new())].into();
        bad(ContainerAdjustment { annotations, ..ContainerAdjustment::default() });
    }
    for args in [vec![String::new()], vec!["a\0".to_owned()]] {
        bad(ContainerAdjustment { args, ..ContainerAdjustment::default() });
    }
    for path in ["", "hook", "/a/../b"] {
        let hook = Hook { path: path.to_owned(), ..Hook::default() };
        let hooks = Some(Hooks { prestart: vec![hook], ..Hooks::default() });
        bad(ContainerAdjustment { hooks, ..ContainerAdjustment::default() });
    }
    for path in ["dev/x", "/dev/../x", "/"] {
        let devices = vec![device(path)];
        bad(linux(LinuxContainerAdjustment { devices, ..LinuxContainerAdjustment::default() }));
    }
    for (file, value) in
        [("cgroup.procs", "1"), ("../memory.max", "1"), ("memory.max", "1\n2"), ("memory", "1"), (".x", "1"), ("", "1")]
    {
        let unified = [(file.to_owned(), value.to_owned())].into();
        bad(resources(LinuxResources { unified, ..LinuxResources::default() }));
    }
    let cpu = Some(LinuxCpu { cpus: "0\n1".to_owned(), ..LinuxCpu::default() });
    bad(resources(LinuxResources { cpu, ..LinuxResources::default() }));
    let hugepage_limits = vec![HugepageLimit { page_size: "../2MB".to_owned(), limit: 1 }];
    bad(resources(LinuxResources { hugepage_limits, ..LinuxResources::default() }));
}

#[test]
fn an_update_of_the_container_itself_is_refused() {
    let update = vec![ContainerUpdate { container_id: "c".to_owned(), ..ContainerUpdate::default() }];
    let answer = CreateContainerResponse { update, ..CreateContainerResponse::default() };
    let refused = Creation::new(container()).add("10-a", &Allow::default(), answer).unwrap_err();
    assert_eq!(refused, MergeError::OwnUpdate { plugin: "10-a".to_owned() });
}

#[test]
fn sixty_thousand_mounts_are_merged_in_time() {
    let begun = std::time::Instant::now();
    let many: Vec<_> = (0..60_000).map(|n| mount(&format!("/m/{n}"), "x")).collect();
    let removals = (0..60_000).map(|n| mount(&format!("-/m/{n}"), "")).collect();
    let (created, shown) = merged(vec![mounts(many), mounts(removals)]).unwrap();
    assert_eq!((created.adjust.mounts.len(), shown.mounts.len()), (60_000, 2));
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}
