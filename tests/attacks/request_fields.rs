//! Attacks by fields of a request: sysctls, annotations, variables, file names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cri_api::v1;
use cri_api::v1::NamespaceMode;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::client::{Pod, container, namespaces, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;
use crate::support::layer_fixture::Layer;

/// The host's own kernel parameters, but for those that change by themselves.
fn parameters() -> BTreeMap<String, String> {
    const RESTLESS: [&str; 11] = [
        "quota/",
        "random",
        "inode-nr",
        "inode-state",
        "dentry-state",
        "file-nr",
        "nr_",
        "count",
        "pty/nr",
        "ns_last_pid",
        "numa_",
    ];
    let (mut all, mut ahead) = (BTreeMap::new(), vec![Path::new("/proc/sys").to_owned()]);
    while let Some(dir) = ahead.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.display().to_string();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // Interfaces come and go with the tests beside this one.
                if !name.contains("/conf/") && !name.contains("/neigh/") {
                    ahead.push(path);
                }
            } else if let Ok(text) = fs::read_to_string(&path)
                && !RESTLESS.iter().any(|word| name.contains(word))
            {
                all.insert(name, text);
            }
        }
    }
    assert!(all.len() > 300, "{}", all.len());
    all
}

#[test]
fn sysctls_of_a_pod_cannot_be_injected_or_change_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let before = parameters();
    let run = |mode: v1::NamespaceOption, name: &str, value: &str| {
        let mut config = daemon.pod_config("pod");
        *pod_namespaces(&mut config) = mode;
        config.linux.as_mut().unwrap().sysctls.insert(name.into(), value.into());
        client.try_run_pod(config)
    };
    let own = namespaces(NamespaceMode::Container);
    let node = NamespaceMode::Node.into();
    let refused = [
        // A second parameter in the value or in the name.
        (own.clone(), "kernel.shm_rmid_forced", "1+kernel.core_pattern=|/bin/sh"),
        (own.clone(), "kernel.shm_rmid_forced", "1\nkernel.core_pattern=|/bin/sh"),
        (own.clone(), "kernel.shm_rmid_forced", "1 kernel.core_pattern=|/bin/sh"),
        (own.clone(), "kernel.shm_rmid_forced+kernel.core_pattern", "1"),
        (own.clone(), "kernel.shm_rmid_forced=1\nkernel.core_pattern", "1"),
        // Names that lead elsewhere.
        (own.clone(), "net.ipv4/../../kernel/core_pattern", "|/bin/sh"),
        (own.clone(), "net/../kernel/core_pattern", "|/bin/sh"),
        (own.clone(), "net....kernel.core_pattern", "|/bin/sh"),
        (own.clone(), "net.", "1"),
        (own.clone(), "net.ipv4.ip_forward\0", "1"),
        (own.clone(), "kernel.msgmax/../core_pattern", "|/bin/sh"),
        // These are the host's alone.
        (own.clone(), "kernel.core_pattern", "|/bin/sh"),
        (own.clone(), "kernel.modprobe", "/bin/sh"),
        (own.clone(), "kernel.hostname", "evil"),
        (own.clone(), "kernel.panic", "1"),
        (own.clone(), "vm.overcommit_memory", "1"),
        (own.clone(), "fs.suid_dumpable", "2"),
        (own.clone(), "user.max_user_namespaces", "0"),
        (own.clone(), "KERNEL.shm_rmid_forced", "1"),
        // Kept apart by a namespace, which this pod shares with the host.
        (v1::NamespaceOption { ipc: node, ..own.clone() }, "kernel.shm_rmid_forced", "1"),
        (v1::NamespaceOption { ipc: node, ..own.clone() }, "kernel.msgmax", "9999"),
        (v1::NamespaceOption { ipc: node, ..own.clone() }, "fs.mqueue.msg_max", "11"),
        (v1::NamespaceOption { network: node, ..own.clone() }, "net.ipv4.ip_unprivileged_port_start", "7"),
        // The host's alone, though their names begin with net: they do not exist in a pod.
        (own.clone(), "net.core.bpf_jit_limit", "1"),
        (own.clone(), "net.core.rmem_default", "4608"),
    ];
    for (mode, name, value) in refused {
        let refusal = run(mode, name, value).expect_err(name);
        assert!(refusal.message().contains("sysctl"), "{name}: {refusal:?}");
    }
    assert!(client.pods().is_empty());
    let granted = [
        ("net.ipv4.ip_unprivileged_port_start", "77"),
        ("net.ipv4.tcp_syncookies", "2"),
        ("net.core.somaxconn", "77"),
        ("net.ipv6.conf.all.disable_ipv6", "1"),
        ("kernel.msgmax", "7777"),
        ("kernel.sem", "77 7777 77 77"),
        ("fs.mqueue.msg_max", "7"),
    ];
    let pod = daemon.run_pod_with("pod", |config| {
        let pairs = granted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        config.linux.as_mut().unwrap().sysctls = pairs.into();
    });
    let id = client.run_idle(&pod, "main");
    for (name, value) in granted {
        let seen = client.exec_script(&id, &format!("cat /proc/sys/{}", name.replace('.', "/")));
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), value.split(' ').collect::<Vec<_>>(), "{name}");
    }
    let after = parameters();
    let changed: Vec<_> = before.iter().filter(|(name, value)| after.get(*name) != Some(value)).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// Returns the configuration of a container's launch, without parts that differ for each container.
fn launched(daemon: &Daemon, pod: &Pod, id: &str) -> (Value, Value, BTreeMap<String, String>) {
    let dir = daemon.env.state().join("pods").join(&pod.id).join("containers").join(id);
    let read = |file: &str| -> Value {
        let text = fs::read_to_string(dir.join(file)).unwrap().replace(id, "CONTAINER").replace(&pod.id, "POD");
        let shim =
            daemon.shims().iter().fold(text, |text, shim| text.replace(&format!("/proc/{shim}/"), "/proc/SHIM/"));
        serde_json::from_str(&shim).unwrap()
    };
    let mut config = read("config.json");
    config.as_object_mut().unwrap().remove("annotations");
    // The order is random; the kernel has the list.
    config["process"].as_object_mut().unwrap().remove("capabilities");
    let mut status = kernel_state::status(daemon.pids(id)[0]);
    let kept = ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    status.retain(|key, _| kept.contains(&key.as_str()));
    (config, read("launch.json"), status)
}

#[test]
fn annotations_do_not_change_a_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let all = [
        ("run.oci.handler", "krun"),
        ("run.oci.keep_original_groups", "1"),
        ("run.oci.mount_context_type", "rootcontext"),
        ("run.oci.hooks.stdout", "/tmp/out"),
        ("run.oci.systemd.subgroup", "../.."),
        ("run.oci.delegate-cgroup", "x"),
        ("org.systemd.property.ExecStartPre", "['/bin/sh']"),
        ("org.opencontainers.runc.exec.isolated-cpu-affinity-transition", "final"),
        ("io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw", "true"),
        ("io.kubernetes.cri-o.userns-mode", "auto"),
        ("io.kubernetes.cri-o.Devices", "/dev/kmsg:/dev/kmsg:rwm"),
        ("io.kubernetes.cri-o.ShmSize", "10Gi"),
        ("io.kubernetes.cri-o.UnifiedCgroup.main", "memory.max=max"),
        ("io.kubernetes.cri-o.Spoofed", "true"),
        ("io.kubernetes.cri-o.seccompNotifierAction", "stop"),
        ("io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel", "true"),
        ("seccomp.security.alpha.kubernetes.io/pod", "unconfined"),
        ("container.apparmor.security.beta.kubernetes.io/main", "unconfined"),
        ("security.alpha.kubernetes.io/sysctls", "kernel.core_pattern=|/bin/sh"),
        ("io.katacontainers.config.hypervisor.path", "/bin/sh"),
        ("io.containerd.cri.runtime-handler", "other"),
        ("io.kubernetes.cri.container-type", "sandbox"),
        ("cpu-quota.crio.io", "disable"),
        ("io.crisp.privileged", "true"),
        ("io.crisp.pod-resources", "{}"),
        ("line\nbreak", "a\0b"),
    ];
    let annotations: BTreeMap<String, String> = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let run = |name: &str, annotations: &BTreeMap<String, String>| {
        let mut config = daemon.pod_config(name);
        config.hostname = "same".into();
        config.annotations = annotations.clone();
        let cgroup = daemon.env.pod_cgroup(name);
        config.linux.as_mut().unwrap().cgroup_parent = cgroup;
        let pod = client.run_pod_of(config);
        let mut config = container("main", &crate::support::client::IDLE);
        config.annotations = annotations.clone();
        let profile = v1::security_profile::ProfileType::RuntimeDefault.into();
        security(&mut config).seccomp =
            Some(v1::SecurityProfile { profile_type: profile, localhost_ref: String::new() });
        let id = client.run_config(&pod, config);
        let looks = launched(&daemon, &pod, &id);
        let text = |value: Value| {
            value.to_string().replace(&format!("/{name}/"), "/NAME/").replace(&format!("/{name}\""), "/NAME\"")
        };
        let looks = (text(looks.0), text(looks.1), looks.2);
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
        daemon.env.remove_pod_cgroup(&format!("{}/{name}", daemon.env.cgroup()));
        looks
    };
    let plain = run("plain", &Default::default());
    let annotated = run("annotated", &annotations);
    assert_eq!(annotated.2, plain.2);
    assert_eq!(annotated.0, plain.0);
    assert_eq!(annotated.1, plain.1);
}

#[test]
fn variables_cannot_inject_other_variables_or_accounts() {
    let env = TestEnv::new();
    let odd = "x\nroot2::0:0::/:/bin/sh";
    env.import(
        &Archive::new("crisp.test/home:1")
            .with("Env", json!(["PATH=/bin", format!("HOME={odd}"), "A=b\nEVIL=1"]))
            .on_top(Layer::new(|tar| tar.file("etc/passwd", 0o644, b"root:x:0:0::/ro:ot:/bin/sh\nu:x:5:5::\n"))),
    );
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let of = |name: &str| {
        let mut config = container(name, &crate::support::client::IDLE);
        config.image.as_mut().unwrap().image = "crisp.test/home:1".into();
        config
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<v1::KeyValue> {
        let pair = |(key, value): &(&str, &str)| v1::KeyValue { key: (*key).into(), value: value.as_bytes().to_vec() };
        pairs.iter().map(pair).collect()
    };
    for (bad, field) in
        [(("HOME", "/\0EVIL=1"), "value"), (("HO=ME", "/"), "key"), (("", "/"), "key"), (("A\0B", "/"), "key")]
    {
        let mut config = of("bad");
        config.envs = pairs(&[bad]);
        let refusal = client.try_create(&pod, config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().contains(&format!("config.envs[0].{field}")), "{refusal:?}");
    }
    let mut config = of("good");
    config.envs = pairs(&[("HOME", odd), ("COLONS", "a:b:c\n"), ("EMPTY", "")]);
    let id = client.run_config(&pod, config);
    let environ = fs::read(format!("/proc/{}/environ", daemon.pids(&id)[0])).unwrap();
    let variables: Vec<&str> = environ.split(|b| *b == 0).map(|v| std::str::from_utf8(v).unwrap()).collect();
    assert!(variables.contains(&format!("HOME={odd}").as_str()), "{variables:?}");
    assert!(variables.iter().all(|variable| !variable.starts_with("EVIL")), "{variables:?}");
    assert_eq!(client.exec_script(&id, "cat /etc/passwd | wc -l"), "2\n");
    // The image's own file is as it was: crisp never writes one.
    let upper = daemon.env.root().join("containers").join(&id).join("upper/etc");
    assert!(!upper.join("passwd").exists() && !upper.join("group").exists());
}

#[test]
fn limits_are_written_to_the_containers_cgroup_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let bad = [
        "../memory.max",
        "/sys/fs/cgroup/memory.max",
        "memory.max/../../memory.max",
        "sub/memory.max",
        "memory..max",
        "Memory.max",
        "memory.max\n",
        "memory.max\0",
        "",
        ".",
        "..",
        "memory",
        "cgroup.procs",
        "cgroup.kill",
        "cgroup.freeze",
        "cgroup.subtree_control",
    ];
    for key in bad {
        let unified = [(key.to_owned(), "1".to_owned())].into();
        let resources = v1::LinuxContainerResources { unified, ..Default::default() };
        let mut config = container("bad", &["true"]);
        config.linux.as_mut().unwrap().resources = Some(resources.clone());
        for refusal in [client.try_create(&pod, config).map(drop), client.update(&id, resources)] {
            let refusal = refusal.expect_err(key);
            assert_eq!(refusal.code(), Code::InvalidArgument, "{key:?}: {refusal:?}");
            assert!(refusal.message().contains("unified"), "{key:?}: {refusal:?}");
        }
    }
    daemon.wait_until_like(&before);
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
}

/// A name that is a file in a hierarchy of this host cannot be a cgroup; such a pod could be
/// created but never removed.
#[test]
fn a_cgroup_parent_that_names_a_kernel_file_is_refused_by_field() {
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let mut bad: Vec<String> =
        ["/memory.stat/x", "/new/cgroup.procs", "/new/cpu.shares/x", "/cpu.max", "/tasks"].map(str::to_owned).into();
    for (_, point) in kernel_state::hierarchies() {
        let entries = fs::read_dir(point).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        bad.extend(files.map(|file| format!("/{}", file.file_name().to_str().unwrap())));
    }
    for (number, parent) in bad.into_iter().enumerate() {
        let mut config = daemon.pod_config(&format!("pod-{number}"));
        config.linux.as_mut().unwrap().cgroup_parent = parent.clone();
        let refusal = daemon.client().try_run_pod(config).unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::InvalidArgument, "{parent}: {refusal:?}");
        assert!(refusal.message().starts_with("config.linux.cgroup_parent: "), "{refusal:?}");
        assert!(refusal.message().contains(&parent), "{refusal:?}");
    }
    daemon.wait_until_like(&before);
}
