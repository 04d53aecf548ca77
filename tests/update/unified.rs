//! Files that a request names in `unified`, and huge pages.

use super::*;

fn with_unified(pairs: &[(&str, &str)]) -> v1::LinuxContainerResources {
    let unified = pairs.iter().map(|(file, value)| ((*file).to_owned(), (*value).to_owned())).collect();
    v1::LinuxContainerResources { unified, ..limits(500, 64) }
}

#[test]
fn named_files_are_written_if_they_exist_and_ignored_with_a_warning_otherwise() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    let asked = [
        ("memory.high", "50331648"),
        ("memory.min", "8388608"),
        ("memory.low", "16777216"),
        ("memory.oom.group", "1"),
        ("memory.swap.max", "0"),
    ];
    daemon.client().update(&id, with_unified(&asked)).unwrap();
    if !kernel_state::is_v2() {
        assert!(daemon.env.read_log().contains("ignoring linux.unified: this host has cgroup v1"));
        assert!(daemon.client().in_force(&id).unified.is_empty());
        return;
    }
    let holds = |daemon: &Daemon, name: &str| fs::read_to_string(file(daemon, &id, name)).unwrap().trim().to_owned();
    daemon.restart();
    for (name, value) in asked {
        assert_eq!(holds(&daemon, name), value, "{name}");
        assert_eq!(daemon.client().in_force(&id).unified[name], value, "{name}");
    }
    // One file that the kernel rejects: none of them changes.
    let refusal = daemon.client().update(&id, with_unified(&[("memory.high", "max"), ("memory.oom.group", "7")]));
    assert!(refusal.unwrap_err().message().contains("memory.oom.group"));
    assert_eq!(
        (holds(&daemon, "memory.high").as_str(), holds(&daemon, "memory.oom.group").as_str()),
        ("50331648", "1")
    );
    let refusal = daemon.client().update(&id, with_unified(&[("memory.nonsense", "1")])).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::FailedPrecondition, "{refusal:?}");
    // Files that the next change omits keep their values.
    daemon.client().update(&id, limits(700, 96)).unwrap();
    assert_eq!(holds(&daemon, "memory.min"), "8388608");
    assert_limits(&daemon, &id, 700, 96);
}

#[test]
fn huge_page_limits_are_applied_and_the_kubelets_zeros_ignored() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let huge = |limit| v1::LinuxContainerResources {
        hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".into(), limit }],
        ..limits(500, 64)
    };
    let name = if kernel_state::is_v2() { "hugetlb.2MB.max" } else { "hugetlb.2MB.limit_in_bytes" };
    let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
    if !dirs.iter().any(|dir| dir.ends_with(&id) && dir.join(name).exists()) {
        // Without the controller there is no limit to apply.
        assert_eq!(client.update(&id, huge(4 << 20)).unwrap_err().code(), tonic::Code::FailedPrecondition);
        client.update(&id, huge(0)).unwrap();
        return;
    }
    client.update(&id, huge(4 << 20)).unwrap();
    let now = || fs::read_to_string(file(&daemon, &id, name)).unwrap().trim().to_owned();
    assert_eq!(now(), (4 << 20).to_string());
    client.update(&id, huge(0)).unwrap();
    assert_eq!(now(), (4 << 20).to_string());
    assert_eq!(client.in_force(&id).hugepage_limits[0].limit, 4 << 20);
}
