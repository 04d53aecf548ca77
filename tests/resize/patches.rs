//! An update is a patch: fields that it omits keep their values.

use cri_api::v1;

use super::container::Container;
use super::resources::{Shape, memory_limit, no_huge_pages};
use super::target::Target;
use crate::support::kernel_state;

const SHAPE: Shape = Shape::burstable((500, 1000), (96, 128));

fn patch(change: impl FnOnce(&mut v1::LinuxContainerResources)) -> v1::LinuxContainerResources {
    let mut patch = v1::LinuxContainerResources::default();
    change(&mut patch);
    patch
}

/// Runs a test with one container.
fn with_container(test: impl FnOnce(Container<'_>)) {
    let target = Target::get();
    let pod = target.run_pod("pod");
    test(Container::run(&target, &pod, "main", &SHAPE));
}

#[test]
fn a_single_field_changes_only_that_field() {
    with_container(|mut container| {
        container.update(patch(|p| p.cpu_shares = 300));
        container.update(patch(|p| p.cpu_quota = 70_000));
        container.update(patch(|p| p.cpu_period = 80_000));
        container.update(memory_limit(192 << 20));
        container.update(patch(|p| p.cpu_shares = 600));
        container.update(memory_limit(112 << 20));
        container.update(patch(|p| (p.cpu_quota, p.cpu_period) = (30_000, 50_000)));
    });
}

#[test]
fn a_patch_that_names_nothing_changes_nothing() {
    with_container(|mut container| {
        container.update(v1::LinuxContainerResources::default());
        container.update(SHAPE.resources());
        container.update(v1::LinuxContainerResources::default());
    });
}

/// The CPUs in the kernel's notation: the first one, and all.
fn cpus() -> (String, String) {
    let name = if kernel_state::is_v2() { "cpuset.cpus.effective" } else { "cpuset.cpus" };
    let all = std::fs::read_to_string(kernel_state::cgroup_dir("cpuset", "/").join(name)).unwrap().trim().to_owned();
    (all.split([',', '-']).next().unwrap().to_owned(), all)
}

#[test]
fn a_change_of_the_cpuset_alone_keeps_all_limits() {
    with_container(|mut container| {
        let (first, all) = cpus();
        // The only field that the kubelet's CPU manager sends.
        container.update(patch(|p| p.cpuset_cpus = first.clone()));
        container.update(patch(|p| p.cpuset_cpus = all));
        container.update(patch(|p| p.cpuset_cpus = first));
    });
}

#[test]
fn a_change_of_limits_keeps_the_cpuset() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let (first, all) = cpus();
    let resources = v1::LinuxContainerResources { cpuset_cpus: first, ..SHAPE.resources() };
    let mut container = Container::run_config(&target, &pod, target.idle("main"), resources);
    // A resize never names a cpuset.
    container.update(Shape::burstable((750, 1500), (96, 192)).resources());
    container.update(patch(|p| p.cpuset_cpus = all));
    container.update(SHAPE.resources());
}

#[test]
fn a_quota_of_minus_one_is_unlimited_until_a_limit_is_set() {
    with_container(|mut container| {
        container.update(patch(|p| p.cpu_quota = -1));
        // Omitted, so still unlimited.
        container.update(memory_limit(160 << 20));
        container.update(v1::LinuxContainerResources { cpu_quota: -1, ..SHAPE.resources() });
        container.update(SHAPE.resources());
    });
}

#[test]
fn huge_page_limits_of_0_change_nothing() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let files = hugetlb_files();
    let limits = files.iter().map(|(size, _)| v1::HugepageLimit { page_size: size.clone(), limit: 1 << 30 });
    let resources = v1::LinuxContainerResources { hugepage_limits: limits.collect(), ..SHAPE.resources() };
    let mut container = Container::run_config(&target, &pod, target.idle("main"), resources);
    // A runtime may ignore huge pages.
    let look = |container: &Container<'_>| files.iter().map(|(_, f)| container.file("hugetlb", f)).collect::<Vec<_>>();
    let before = look(&container);
    let mut zeros = no_huge_pages();
    if zeros.is_empty() {
        zeros.push(v1::HugepageLimit { page_size: "2MB".to_owned(), limit: 0 });
    }
    // The kubelet sends them for all sizes in every resize.
    container.update(v1::LinuxContainerResources { hugepage_limits: zeros.clone(), ..SHAPE.resources() });
    container.update(patch(|p| p.hugepage_limits = zeros));
    assert_eq!(look(&container), before, "{files:?}");
}

/// The sizes of the machine's hugetlb controller, if it has one, and the file of each.
fn hugetlb_files() -> Vec<(String, String)> {
    let mounted = kernel_state::hierarchies().iter().any(|(name, _)| name.split(',').any(|one| one == "hugetlb"));
    let root = kernel_state::cgroup_dir("hugetlb", "/");
    let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let v2 = kernel_state::is_v2() && controllers.split_whitespace().any(|name| name == "hugetlb");
    let end = if v2 { "max" } else { "limit_in_bytes" };
    let sizes = no_huge_pages().into_iter().map(|limit| limit.page_size).filter(|_| mounted || v2);
    sizes.map(|size| (size.clone(), format!("hugetlb.{size}.{end}"))).collect()
}

#[test]
fn access_to_devices_does_not_change() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut config = target.idle("main");
    let capabilities = v1::Capability { add_capabilities: vec!["MKNOD".into()], ..Default::default() };
    crate::support::client::security(&mut config).capabilities = Some(capabilities);
    let mut container = Container::run_config(&target, &pod, config, SHAPE.resources());
    let look = |container: &Container<'_>| {
        // The device `mem`, which no container may access.
        let script = "echo x > /dev/null && head -c 4 /dev/zero | wc -c; \
            busybox mknod /tmp/mem$$ c 1 1 && head -c 1 /tmp/mem$$ > /dev/null 2>&1 && echo open || echo shut";
        target.client().exec_script(&container.id, script)
    };
    assert_eq!(look(&container), "4\nshut\n");
    container.update(Shape::burstable((750, 1500), (96, 192)).resources());
    assert_eq!(look(&container), "4\nshut\n");
    container.update(SHAPE.resources());
    assert_eq!(look(&container), "4\nshut\n");
}

#[test]
fn unified_files_are_written_if_named_and_kept_otherwise() {
    with_container(|mut container| {
        let unified = |pairs: &[(&str, &str)]| {
            patch(|p| p.unified = pairs.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect())
        };
        if !kernel_state::is_v2() {
            // The machine has none, so the kubelet sends none; a runtime may accept or refuse them.
            container.try_update(unified(&[("memory.high", "1048576")])).ok();
            return container.check();
        }
        container.update(unified(&[("memory.low", "33554432"), ("memory.high", "100663296")]));
        let seen = |container: &Container<'_>| ["memory.low", "memory.high"].map(|f| container.file("memory", f));
        assert_eq!(seen(&container), ["33554432", "100663296"]);
        container.update(patch(|p| p.cpu_shares = 700));
        assert_eq!(seen(&container), ["33554432", "100663296"]);
        container.update(unified(&[("memory.high", "max")]));
        assert_eq!(seen(&container), ["33554432", "max"]);
        container.update(Shape::burstable((500, 1000), (64, 160)).resources());
        assert_eq!(seen(&container), [(64 << 20).to_string(), "max".to_owned()]);
    });
}
