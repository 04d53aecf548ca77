//! With which rights a container's processes run: the first one and the exec'd ones alike.

use std::collections::BTreeMap;

use cri_api::v1;
use cri_api::v1::security_profile::ProfileType;

use crate::support::client::{Pod, container, security};
use crate::support::harness::{Daemon, times};
use crate::support::kernel_state;

/// The default rights of a container.
const DEFAULT: u64 = 0xa804_25fb;
const NET_ADMIN: u64 = 1 << 12;
const NET_BIND_SERVICE: u64 = 1 << 10;

/// One combination of wishes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    user: i64,
    no_new_privs: bool,
    seccomp: ProfileType,
    capabilities: Wished,
}

#[derive(Debug, Clone, Copy)]
enum Wished {
    Default,
    Add,
    DropAll,
    Ambient,
}

impl Wish {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for user in [0, 1000] {
            for no_new_privs in [false, true] {
                for seccomp in [ProfileType::Unconfined, ProfileType::RuntimeDefault] {
                    for capabilities in [Wished::Default, Wished::Add, Wished::DropAll, Wished::Ambient] {
                        all.push(Self { user, no_new_privs, seccomp, capabilities });
                    }
                }
            }
        }
        all
    }

    pub(crate) fn config(self) -> v1::ContainerConfig {
        let mut config = container("main", &crate::support::client::IDLE);
        let wanted = security(&mut config);
        wanted.run_as_user = Some(v1::Int64Value { value: self.user });
        wanted.supplemental_groups = vec![4000, 5000];
        wanted.no_new_privs = self.no_new_privs;
        wanted.seccomp = Some(v1::SecurityProfile { profile_type: self.seccomp.into(), localhost_ref: String::new() });
        let name = |name: &str| vec![name.to_owned()];
        wanted.capabilities = match self.capabilities {
            Wished::Default => None,
            Wished::Add => Some(v1::Capability { add_capabilities: name("NET_ADMIN"), ..Default::default() }),
            Wished::DropAll => Some(v1::Capability { drop_capabilities: name("ALL"), ..Default::default() }),
            Wished::Ambient => Some(v1::Capability {
                drop_capabilities: name("ALL"),
                add_capabilities: name("CAP_NET_BIND_SERVICE"),
                add_ambient_capabilities: name("NET_BIND_SERVICE"),
            }),
        };
        config
    }

    /// Returns the expected lines of `/proc/PID/status`, seen from a process for which the
    /// container's root is `root`.
    fn expected(self, root: i64) -> BTreeMap<&'static str, String> {
        let (bounding, ambient) = match self.capabilities {
            Wished::Default => (DEFAULT, 0),
            Wished::Add => (DEFAULT | NET_ADMIN, 0),
            Wished::DropAll => (0, 0),
            Wished::Ambient => (NET_BIND_SERVICE, NET_BIND_SERVICE),
        };
        // A program of another user than root keeps ambient capabilities.
        let effective = if self.user == 0 { bounding } else { ambient };
        let hex = |bits: u64| format!("{bits:016x}");
        let id = root + self.user;
        let groups: &[i64] = if self.user == 0 { &[0, 4000, 5000] } else { &[1000, 2000, 3000, 4000, 5000] };
        let groups: Vec<_> = groups.iter().map(|group| (root + group).to_string()).collect();
        BTreeMap::from([
            ("Uid", format!("{id} {id} {id} {id}")),
            ("Gid", format!("{id} {id} {id} {id}")),
            ("Groups", groups.join(" ")),
            ("CapInh", hex(ambient)),
            ("CapPrm", hex(effective)),
            ("CapEff", hex(effective)),
            ("CapBnd", hex(bounding)),
            ("CapAmb", hex(ambient)),
            ("NoNewPrivs", u8::from(self.no_new_privs).to_string()),
            ("Seccomp", if self.seccomp == ProfileType::Unconfined { "0" } else { "2" }.to_owned()),
        ])
    }
}

pub(crate) fn compare(who: &str, wish: Wish, root: i64, status: &BTreeMap<String, String>) {
    for (key, value) in wish.expected(root) {
        assert_eq!(status[key], value, "{key} of the {who} process with {wish:?}");
    }
}

#[test]
fn every_combination_of_rights_is_as_requested() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for wish in Wish::all().into_iter().step_by(times(1, 3)) {
        let id = client.run_config(&pod, wish.config());
        compare("first", wish, 0, &kernel_state::status(daemon.pids(&id)[0]));
        compare("exec'd", wish, 0, &kernel_state::status_lines(&client.exec_script(&id, "cat /proc/self/status")));
        client.remove(&id).unwrap();
    }
}

#[test]
fn the_default_seccomp_profile_forbids_the_expected_calls_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let run = |name: &str, profile: ProfileType| {
        let mut config = container(name, &crate::support::client::IDLE);
        let profile = v1::SecurityProfile { profile_type: profile.into(), localhost_ref: String::new() };
        security(&mut config).seccomp = Some(profile);
        client.run_config(&pod, config)
    };
    let (confined, free) = (run("confined", ProfileType::RuntimeDefault), run("free", ProfileType::Unconfined));
    // A new user namespace needs no capability: only the filter forbids it.
    let unshare = ["busybox", "unshare", "-U", "true"];
    assert_eq!(client.exec(&free, &unshare).code, 0);
    let refused = client.exec(&confined, &unshare);
    assert!(refused.code != 0 && refused.stderr.contains("not permitted"), "{refused:?}");
    assert_eq!(client.exec_script(&confined, "seq 3 | sort -r | head -n 1; mkdir /tmp/d; ls -d /tmp/d"), "3\n/tmp/d\n");
}

#[test]
fn a_localhost_seccomp_profile_is_applied() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let profile = daemon.env.dir().join("profile.json");
    let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":95}]}"#;
    std::fs::write(&profile, text).unwrap();
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).seccomp = Some(v1::SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: profile.display().to_string(),
    });
    let id = client.run_config(&pod, config);
    let refused = client.exec(&id, &["mkdir", "/tmp/d"]);
    assert!(refused.code != 0 && refused.stderr.contains("not supported"), "{refused:?}");
}

#[test]
fn groups_follow_the_policy() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for (name, policy, groups) in [
        ("merge", v1::SupplementalGroupsPolicy::Merge, vec![1000, 2000, 3000, 4000]),
        ("strict", v1::SupplementalGroupsPolicy::Strict, vec![1000, 4000]),
    ] {
        let mut config = container(name, &crate::support::client::IDLE);
        security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
        security(&mut config).supplemental_groups = vec![4000];
        security(&mut config).supplemental_groups_policy = policy.into();
        let id = client.run_config(&pod, config);
        let seen: Vec<i64> =
            kernel_state::status(daemon.pids(&id)[0])["Groups"].split(' ').map(|g| g.parse().unwrap()).collect();
        assert_eq!(seen, groups, "{name}");
        assert_eq!(client.status(&id).user.unwrap().linux.unwrap().supplemental_groups, groups, "{name}");
    }
}

fn privileged_pod(daemon: &Daemon) -> Pod {
    daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    })
}

#[test]
fn a_privileged_container_has_all_rights_of_the_daemon() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = privileged_pod(&daemon);
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).privileged = true;
    // A profile does not bind the privileged.
    let profile =
        v1::SecurityProfile { profile_type: ProfileType::RuntimeDefault.into(), localhost_ref: String::new() };
    security(&mut config).seccomp = Some(profile);
    let id = client.run_config(&pod, config);
    let ceiling = kernel_state::status(daemon.pid())["CapPrm"].clone();
    let first = kernel_state::status(daemon.pids(&id)[0]);
    let second = kernel_state::status_lines(&client.exec_script(&id, "cat /proc/self/status"));
    for status in [first, second] {
        assert_eq!((&status["CapEff"], &status["CapBnd"]), (&ceiling, &ceiling));
        assert_eq!(status["Seccomp"], "0");
    }
    client.exec_script(&id, "mkdir /tmp/m && mount -t tmpfs x /tmp/m && umount /tmp/m");
    let devices = client.exec_script(&id, "ls /dev");
    assert!(std::path::Path::new("/dev/kmsg").exists() <= devices.contains("kmsg"), "{devices}");
}

#[test]
fn all_capabilities_means_those_of_the_daemon() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).capabilities =
        Some(v1::Capability { add_capabilities: vec!["all".into()], ..Default::default() });
    let id = client.run_config(&pod, config);
    let ceiling = &kernel_state::status(daemon.pid())["CapPrm"];
    assert_eq!(&kernel_state::status(daemon.pids(&id)[0])["CapEff"], ceiling);
}

#[test]
fn a_privileged_container_in_an_unprivileged_pod_is_refused() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["true"]);
    security(&mut config).privileged = true;
    let refusal = daemon.client().try_create(&pod, config).unwrap_err();
    assert!(refusal.message().contains("privileged"), "{refusal:?}");
}

/// As the kubelet requests it for `kubectl debug --profile=sysadmin` in a running pod: from then on
/// the pod is privileged.
#[test]
fn a_pod_becomes_privileged_by_a_later_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut pod = daemon.run_pod("pod");
    let plain = client.run(&pod, "main", &["sleep", "1000"]);
    pod.config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    let mut config = container("debugger", &["sleep", "1000"]);
    security(&mut config).privileged = true;
    let id = client.run_config(&pod, config);
    let ceiling = &kernel_state::status(daemon.pid())["CapPrm"];
    assert_eq!(&kernel_state::status(daemon.pids(&id)[0])["CapEff"], ceiling);
    assert_ne!(&kernel_state::status(daemon.pids(&plain)[0])["CapEff"], ceiling, "the other container is unchanged");
}

#[test]
fn only_default_and_requested_devices_can_be_used() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::support::client::IDLE);
    config.devices = vec![v1::Device {
        container_path: "/dev/wanted".into(),
        host_path: "/dev/null".into(),
        permissions: "r".into(),
    }];
    let id = client.run_config(&pod, config);
    client.exec_script(&id, "echo x > /dev/null; head -c 1 /dev/zero > /dev/null; head -c 1 /dev/urandom > /dev/null");
    assert_eq!(client.exec_script(&id, "stat -c %F,%t,%T /dev/wanted"), "character special file,1,3\n");
    // Created, since it has MKNOD, but not opened: the kernel's log (1, 11) is for the host only.
    let open = client.exec(&id, &["sh", "-c", "busybox mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg"]);
    assert!(open.code != 0 && open.stderr.contains("not permitted"), "{open:?}");
}

#[test]
fn selinux_options_are_ignored_with_one_warning_on_a_host_without_selinux() {
    let daemon = Daemon::start();
    let options = || Some(v1::SeLinuxOption { r#type: "spc_t".into(), level: "s0:c1,c2".into(), ..Default::default() });
    let pod = daemon.run_pod_with("labelled", |config| {
        config.linux.get_or_insert_default().security_context.get_or_insert_default().selinux_options = options();
    });
    for name in ["first", "second"] {
        let mut container = container(name, &["true"]);
        security(&mut container).selinux_options = options();
        let id = daemon.client().run_config(&pod, container);
        assert_eq!(daemon.client().wait_exited(&id).exit_code, 0);
    }
    let log = daemon.env.read_log();
    assert_eq!(log.matches("this host has no SELinux").count(), 1, "{log}");
}
