//! AppArmor, on a kernel with AppArmor: `hack/dev e2e lsm`.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use cri_api::v1;
use cri_api::v1::security_profile::ProfileType;
use tonic::Code;

use crate::support::client::{Client, IDLE, Pod, container, security};
use crate::support::harness::Daemon;

/// A profile that denies all writes below /tmp.
const NO_TMP: &str = "profile crisp-test-no-tmp flags=(attach_disconnected,mediate_deleted) {
  file, network, capability, signal, ptrace,
  deny /tmp/** w,
}";

fn parser(option: &str, text: &str) {
    let mut parser = Command::new("apparmor_parser");
    let mut parser = parser.args(["--skip-cache", option]).stdin(Stdio::piped()).spawn().unwrap();
    parser.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(parser.wait().unwrap().success());
}

/// A loaded profile; unloaded on drop.
struct Loaded(&'static str);

impl Loaded {
    fn new(text: &'static str) -> Self {
        parser("--replace", text);
        Self(text)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        parser("--remove", self.0);
    }
}

fn config_with_profile(name: &str, profile: Option<(ProfileType, &str)>) -> v1::ContainerConfig {
    let mut config = container(name, &IDLE);
    security(&mut config).apparmor = profile.map(|(profile_type, name)| v1::SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: name.to_owned(),
    });
    config
}

/// Returns the confinement of a container's first process and of an exec in it, read from the kernel.
fn confinement(daemon: &Daemon, id: &str) -> [String; 2] {
    let first = fs::read_to_string(format!("/proc/{}/attr/current", daemon.pids(id)[0])).unwrap();
    let exec = daemon.client().exec_script(id, "cat /proc/self/attr/current");
    [first, exec].map(|text| text.trim_end_matches(['\n', '\0']).to_owned())
}

fn may_mount(config: &mut v1::ContainerConfig) {
    let add_capabilities = vec!["SYS_ADMIN".to_owned()];
    security(config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
}

fn privileged_pod(daemon: &Daemon) -> Pod {
    daemon.run_pod_with("privileged", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    })
}

const ENFORCED: [&str; 2] = ["crisp-default (enforce)"; 2];
const FREE: [&str; 2] = ["unconfined"; 2];

#[test]
fn the_default_profile_applies_also_without_a_requested_profile() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let run = |name: &str, profile| {
        let mut config = config_with_profile(name, profile);
        may_mount(&mut config);
        // The profile denies writes even without read-only paths.
        security(&mut config).readonly_paths.clear();
        client.run_config(&pod, config)
    };
    let silent = run("silent", None);
    let default = run("default", Some((ProfileType::RuntimeDefault, "")));
    let free = run("free", Some((ProfileType::Unconfined, "")));
    let mount = ["sh", "-c", "mkdir -p /tmp/m && mount -t tmpfs x /tmp/m"];
    let write = ["sh", "-c", "cat /proc/sys/vm/swappiness > /proc/sys/vm/swappiness"];
    for id in [&silent, &default] {
        assert_eq!(confinement(&daemon, id), ENFORCED);
        for forbidden in [&mount, &write] {
            let refused = client.exec(id, forbidden);
            assert!(refused.code != 0 && refused.stderr.contains("ermission denied"), "{refused:?}");
        }
        // Ordinary operations are allowed: files, processes, signals within the container.
        let work = "echo x > /tmp/f && cat /tmp/f && sleep 100 & kill $! && echo 1 > /proc/self/oom_score_adj && ls /sys > /dev/null";
        client.exec_script(id, work);
    }
    assert_eq!(confinement(&daemon, &free), FREE);
    for allowed in [&mount, &write] {
        assert_eq!(client.exec(&free, allowed).code, 0);
    }
    // Signals from the daemon are allowed.
    client.stop(&default, 30).unwrap();
    assert_eq!(client.status(&default).exit_code, 0);
}

#[test]
fn privileged_containers_are_unconfined_unless_a_profile_is_requested() {
    let _loaded = Loaded::new(NO_TMP);
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = privileged_pod(&daemon);
    for (name, profile, expected) in [
        ("silent", None, FREE),
        ("default", Some((ProfileType::RuntimeDefault, "")), FREE),
        ("named", Some((ProfileType::Localhost, "crisp-test-no-tmp")), ["crisp-test-no-tmp (enforce)"; 2]),
    ] {
        let mut config = config_with_profile(name, profile);
        security(&mut config).privileged = true;
        let id = client.run_config(&pod, config);
        assert_eq!(confinement(&daemon, &id), expected, "{name}");
    }
}

fn refused(client: &Client, pod: &Pod, config: v1::ContainerConfig) {
    let refusal = client.try_create(pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    let message = refusal.message();
    assert!(message.contains("security_context.apparmor") && message.contains("\"crisp-test-none\""), "{refusal:?}");
}

#[test]
#[expect(deprecated, reason = "the older field is still understood")]
fn a_localhost_profile_applies_and_one_that_is_not_loaded_is_refused() {
    let _loaded = Loaded::new(NO_TMP);
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut older = container("older", &IDLE);
    security(&mut older).apparmor_profile = "localhost/crisp-test-no-tmp".into();
    let newer = config_with_profile("newer", Some((ProfileType::Localhost, "crisp-test-no-tmp")));
    let prefixed = config_with_profile("prefixed", Some((ProfileType::Localhost, "localhost/crisp-test-no-tmp")));
    let mut both = config_with_profile("both", Some((ProfileType::Localhost, "crisp-test-no-tmp")));
    security(&mut both).apparmor_profile = "localhost/crisp-test-none".into();
    for config in [older, newer, prefixed, both] {
        let id = client.run_config(&pod, config);
        assert_eq!(confinement(&daemon, &id), ["crisp-test-no-tmp (enforce)"; 2]);
        let touch = client.exec(&id, &["touch", "/tmp/file"]);
        assert!(touch.code != 0 && touch.stderr.contains("Permission denied"), "{touch:?}");
        client.exec_script(&id, "touch /file");
    }
    let before = daemon.snapshot();
    refused(client, &pod, config_with_profile("none", Some((ProfileType::Localhost, "crisp-test-none"))));
    let mut older = container("none", &["true"]);
    security(&mut older).apparmor_profile = "localhost/crisp-test-none".into();
    refused(client, &pod, older);
    daemon.wait_until_like(&before);
}

#[test]
fn a_handler_may_have_its_own_default() {
    let _loaded = Loaded::new(NO_TMP);
    let settings = "[handlers.own]\napparmor = \"crisp-test-no-tmp\"\n[handlers.bad]\napparmor = \"crisp-test-none\"\n";
    let daemon = Daemon::with_settings(settings);
    let client = daemon.client();
    let run_pod = |handler: &str| {
        let config = daemon.pod_config(handler);
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        let id = client.call(|mut c| async move { c.run_pod_sandbox(request).await }).unwrap().pod_sandbox_id;
        Pod { id, config }
    };
    let (own, bad) = (run_pod("own"), run_pod("bad"));
    let id = client.run_config(&own, config_with_profile("main", None));
    assert_eq!(confinement(&daemon, &id), ["crisp-test-no-tmp (enforce)"; 2]);
    refused(client, &bad, config_with_profile("main", None));
}

#[test]
fn a_program_never_runs_without_the_profile_of_its_container() {
    let loaded = Loaded::new(NO_TMP);
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = privileged_pod(&daemon);
    let named = |name: &str| {
        let mut config = config_with_profile(name, Some((ProfileType::Localhost, "crisp-test-no-tmp")));
        security(&mut config).privileged = true;
        config
    };
    let (running, created) =
        (client.run_config(&pod, named("running")), client.try_create(&pod, named("created")).unwrap());
    // Fake files cover the files in /proc that set the profile.
    let free = client.run_config(&pod, {
        let mut config = config_with_profile("free", Some((ProfileType::Unconfined, "")));
        security(&mut config).privileged = true;
        security(&mut config).namespace_options =
            Some(v1::NamespaceOption { pid: v1::NamespaceMode::Node.into(), ..Default::default() });
        config
    });
    let first = daemon.pids(&running)[0];
    let cover = format!(
        "nsenter -t {first} -m sh -c 'mkdir /kernel && mount --bind /proc /kernel && mount -t tmpfs fake /proc && mkdir -p /proc/thread-self/attr/apparmor && touch /proc/thread-self/attr/apparmor/exec /proc/thread-self/attr/exec'"
    );
    client.exec_script(&free, &cover);
    assert_eq!(client.exec_script(&running, "cat /kernel/self/attr/current"), "crisp-test-no-tmp (enforce)\n");
    // The profile is unloaded before the program starts.
    drop(loaded);
    let refusal = client.start(&created).unwrap_err();
    assert!(refusal.message().contains("AppArmor profile \"crisp-test-no-tmp\""), "{refusal:?}");
}
