//! `crisp resize`: order, rollback, units, JSON, forecasts, and requests that are refused.

use cri_api::v1;
use serde_json::Value;

use super::{errors, text};
use crate::support::client::container;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;
use crate::update::memory::holding;
use crate::update::{assert_limits, kernel_limits, limits};

#[test]
fn a_container_gets_the_same_limits_as_from_a_kubelet() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    let output = daemon.env.verb_ok("resize", &["web", "--cpu", "250m", "--memory", "96Mi"]);
    assert_limits(&daemon, &id, 250, 96);
    assert!(output.contains("67108864 (64Mi)") && output.contains("100663296 (96Mi)"), "before and after: {output}");
    daemon.env.verb_ok("resize", &["shop/web", "--cpu", "100m/300m"]);
    let shown = daemon.client().in_force(&id);
    assert_eq!((shown.cpu_quota, shown.cpu_shares, shown.memory_limit_in_bytes), (30_000, 102, 96 << 20));
    daemon.env.verb_ok("resize", &[&id[..10], "--cpu-quota", "-1", "--cpu-shares", "77"]);
    let shown = daemon.client().in_force(&id);
    assert_eq!((shown.cpu_quota, shown.cpu_shares, shown.memory_limit_in_bytes), (-1, 77, 96 << 20));
    let again = daemon.env.verb_ok("resize", &["web", "--memory", "96Mi"]);
    assert!(again.contains("no change: these limits are already active"), "{again}");
}

/// Creates a pod in a cgroup managed by crisp, with two containers; the pod's limits are the sum of theirs.
fn pair(daemon: &Daemon) -> (String, String, String) {
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(500, 192));
    });
    let web = daemon.client().run_limited(&pod, "web", limits(300, 128));
    let log = daemon.client().run_limited(&pod, "log", limits(200, 64));
    (format!("pod{}", pod.id), web, log)
}

#[test]
fn a_pod_is_resized_in_order_and_a_dry_run_changes_nothing() {
    let daemon = Daemon::start();
    let (pod, web, log) = pair(&daemon);
    let before = [kernel_limits(&daemon, &pod), kernel_limits(&daemon, &web), kernel_limits(&daemon, &log)];
    let arguments = ["shop", "web=cpu:600m,memory:160Mi", "log=memory:48Mi"];
    let plan = daemon.env.verb_ok("resize", &[&arguments[..], &["--dry-run"]].concat());
    let steps: Vec<&str> = plan.lines().take_while(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    let expected = [
        "1. pod shop: memory 192Mi → 208Mi",
        "2. container log: memory 64Mi → 48Mi",
        "3. container web: memory 128Mi → 160Mi",
        "4. pod shop: cpu limit 500m → 800m, cpu shares 512 → 819",
        "5. container web: cpu limit 300m → 600m, cpu shares 307 → 614",
    ];
    assert_eq!(steps, expected, "{plan}");
    assert_eq!([kernel_limits(&daemon, &pod), kernel_limits(&daemon, &web), kernel_limits(&daemon, &log)], before);
    daemon.env.verb_ok("resize", &arguments);
    assert_limits(&daemon, &web, 600, 160);
    assert_limits(&daemon, &log, 200, 48);
    let [cpu, _, memory] = kernel_limits(&daemon, &pod);
    assert_eq!((cpu, memory), ("80000 100000".to_owned(), (208_i64 << 20).to_string()));
    daemon.env.verb_ok("resize", &["shop", "web=memory:128Mi", "--keep-pod"]);
    assert_eq!(kernel_limits(&daemon, &pod)[2], (208_i64 << 20).to_string());
    daemon.env.verb_ok("resize", &["shop", "--pod-memory", "256Mi"]);
    assert_eq!(kernel_limits(&daemon, &pod)[2], (256_i64 << 20).to_string());
}

#[test]
fn a_refused_step_rolls_back_the_whole_pod() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(1000, 384));
    });
    let log = client.run_limited(&pod, "log", limits(200, 64));
    // The shell holds the text in a variable, and does not exec the sleep, because another command follows.
    let script = format!("x=$(head -c {} /dev/zero | tr '\\0' a); echo holding; sleep 100000; echo $x", 24 << 20);
    let mut config = container("web", &["sh", "-c", &script]);
    config.linux.as_mut().unwrap().resources = Some(limits(500, 256));
    let web = client.run_config(&pod, config);
    client.wait_printed(&web, "holding");
    wait_for("the shell to wait", seconds(10), || (daemon.pids(&web).len() == 2).then_some(()));
    let all = || [&format!("pod{}", pod.id), &web, &log].map(|cgroup| kernel_limits(&daemon, cgroup));
    let before = all();
    // log comes first and is lowered; then web is refused.
    let words = daemon.env.verb_fails("resize", &["shop", "log=cpu:400m,memory:32Mi", "web=cpu:200m,memory:8Mi"]);
    assert!(words.contains("step 2 of") && words.contains("container web: memory 256Mi → 8Mi"), "{words}");
    assert!(words.contains("cannot be reclaimed") && words.contains("all changes were rolled back"), "{words}");
    assert_eq!((words.matches("step ").count(), words.matches("changing the resources").count()), (1, 0), "{words}");
    assert!(words.matches(web.as_str()).count() <= 1, "the ID only in the path of the file: {words}");
    assert_eq!(all(), before);
    assert_limits(&daemon, &log, 200, 64);
    assert_eq!(daemon.pids(&web).len(), 2);
}

#[test]
fn a_pod_cgroup_of_the_client_is_not_changed() {
    let daemon = Daemon::start();
    let parent = daemon.env.pod_cgroup("given");
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().cgroup_parent = parent.clone();
    });
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    let before = kernel_limits(&daemon, "given");
    let output = daemon.env.verb_ok("resize", &["shop", "web=cpu:700m,memory:96Mi"]);
    assert!(output.contains("of the pod is managed by the client and was not changed"), "{output}");
    assert_limits(&daemon, &id, 700, 96);
    assert_eq!(kernel_limits(&daemon, "given"), before);
    let words = daemon.env.verb_fails("resize", &["shop", "--pod-memory", "1Gi"]);
    assert!(words.contains("manages the pod's cgroup"), "{words}");
    daemon.client().stop_pod(&pod.id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn invalid_requests_are_refused_before_any_change() {
    let daemon = Daemon::start();
    let (pod, web, _) = pair(&daemon);
    let before = (kernel_limits(&daemon, &pod), kernel_limits(&daemon, &web));
    for (arguments, word) in [
        (&["shop"][..], "nothing to change"),
        (&["web"], "nothing to change"),
        (&["shop", "--cpu", "1"], "name a container"),
        (&["web", "web=cpu:1"], "only for pods"),
        (&["shop", "db=cpu:1"], "log"),
        (&["shop", "web=cpu:1", "web=cpu:2"], "twice"),
        (&["web", "--cpu", "1", "--cpu-quota", "20000"], "cannot be combined"),
        (&["web", "--cpu-shares", "1"], "1"),
    ] {
        let words = daemon.env.verb_fails("resize", arguments);
        assert!(words.contains(word), "{arguments:?}: {words}");
    }
    for bad in [&["web", "--cpu", "lots"][..], &["web", "--memory", "0"], &["shop", "web=gpu:1"]] {
        let output = daemon.env.verb("resize", bad).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {}", super::errors(&output));
    }
    assert_eq!((kernel_limits(&daemon, &pod), kernel_limits(&daemon, &web)), before);
    daemon.client().script(
        &crate::support::client::Pod { id: pod[3..].to_owned(), config: daemon.pod_config("shop") },
        "late",
        "exit 0",
    );
    let words = daemon.env.verb_fails("resize", &["late", "--cpu", "1"]);
    assert!(words.contains("exited"), "{words}");
}

#[test]
fn messages_have_the_units_of_the_request_and_name_values_that_cannot_be_enforced() {
    let daemon = Daemon::start();
    let (pod, web, _) = pair(&daemon);
    let run = |arguments: &[&str]| {
        let output = daemon.env.verb("resize", arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", super::errors(&output));
        (super::text(&output), super::errors(&output))
    };
    let (text, warnings) = run(&["tests/shop/web", "--memory", "256M"]);
    assert!(text.contains("container web: memory 128Mi → 256M  ") && text.contains("256000000 (256M)"), "{text}");
    assert!(!text.contains(" 0 ms") && text.contains(" ms"), "{text}");
    assert_eq!(warnings, "");
    let (_, warnings) = run(&["web", "--cpu", "1m", "--keep-pod"]);
    assert_eq!(warnings, "crisp: warning: cpu limit 1m is below the kernel's minimum: 10m is set\n");
    let (_, warnings) = run(&["shop", "web=cpu:1000000", "--keep-pod", "--dry-run"]);
    assert!(warnings.starts_with("crisp: warning: web: cpu limit 1000000 is above the "), "{warnings}");
    // Shares that no request set have no value.
    let other = daemon.run_pod("other");
    daemon.client().run_limited(&other, "app", limits(500, 64));
    let (text, _) = run(&["other", "--pod-cpu", "2"]);
    assert!(text.contains("cpu shares not set → 2048"), "{text}");
    // The pod of a container can be resized by the name of the container.
    let (text, _) = run(&["web", "--pod-memory", "1Gi"]);
    assert!(text.contains("pod shop: memory"), "{text}");
    assert_eq!(kernel_limits(&daemon, &pod)[2], (1_i64 << 30).to_string());
    let words = daemon.env.verb_fails("resize", &["web", "--memory", "max", "--memory-swap", "10Mi", "--keep-pod"]);
    assert!(words.contains("(10485760 bytes) must be at least the memory limit (unlimited)"), "{words}");
    let [_, _, memory] = kernel_limits(&daemon, &web);
    assert_eq!(memory.parse::<u64>().unwrap() / 4096, 256_000_000 / 4096, "unchanged");
}

#[test]
fn the_result_is_printed_as_json_also_after_a_failure() {
    let daemon = Daemon::start();
    let (_, web, _) = pair(&daemon);
    let run = |arguments: &[&str]| {
        let output = daemon.env.verb("resize", arguments).arg("--json").output().unwrap();
        let report: Value = serde_json::from_str(&super::text(&output)).unwrap();
        (output.status.code().unwrap(), report)
    };
    let (code, report) = run(&["shop", "web=memory:160Mi", "--dry-run"]);
    assert_eq!((code, &report["dry_run"], &report["changed"]), (0, &true.into(), &false.into()), "{report:#}");
    assert_eq!(report["steps"][0]["state"], "planned", "{report:#}");
    let (code, report) = run(&["shop", "web=memory:160Mi"]);
    assert_eq!((code, &report["changed"], &report["error"]), (0, &true.into(), &Value::Null), "{report:#}");
    let step = &report["steps"][1];
    assert_eq!((&step["kind"], &step["name"], &step["id"]), (&"container".into(), &"web".into(), &web.into()));
    let changes = serde_json::json!([{ "setting": "memory", "from": "128Mi", "to": "160Mi" }]);
    assert_eq!((&step["changes"], &step["state"]), (&changes, &"applied".into()), "{report:#}");
    assert!(step["milliseconds"].as_f64().unwrap() > 0.0, "{report:#}");
    let limit = if kernel_state::is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let is_limit = |file: &&Value| file["owner"] == "container web" && file["file"] == limit;
    let file = report["files"].as_array().unwrap().iter().find(is_limit).unwrap();
    let (before, after) = ((128 << 20).to_string(), (160 << 20).to_string());
    assert_eq!((&file["before"], &file["after"]), (&before.into(), &after.into()), "{report:#}");
    // The first step lowers a limit; the second one is refused.
    let (code, report) = run(&["shop", "log=memory:32Mi", "web=memory-swap:4096", "--keep-pod"]);
    let states: Vec<_> =
        report["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect();
    assert_eq!((code, &report["changed"]), (1, &false.into()), "{report:#}");
    assert_eq!(states, ["rolled-back", "failed"], "{report:#}");
    assert!(report["error"].as_str().unwrap().contains("all changes were rolled back"), "{report:#}");
}

#[test]
fn declared_resources_of_a_pod_follow_a_resize() {
    let daemon = Daemon::start();
    let amounts = [("cpu", "500m"), ("memory", "64Mi")];
    let amounts = amounts.map(|(name, text)| (name.to_owned(), cri_api::Quantity { string: text.to_owned() }));
    let stated = v1::KubernetesResources { requests: amounts.clone().into(), limits: amounts.into() };
    let pod = daemon.run_pod_with("shop", |config| {
        let web = v1::ContainerResourceConfig {
            name: "web".to_owned(),
            r#type: v1::container_resource_config::ContainerType::Container.into(),
            kubernetes_resources: Some(stated.clone()),
            ..Default::default()
        };
        config.pod_resources = Some(v1::PodResourceConfig { containers: vec![web], kubernetes_resources: None });
    });
    let mut config = crate::update::limited("web", limits(500, 64));
    config.kubernetes_resources = Some(stated);
    let id = daemon.client().run_config(&pod, config);
    daemon.env.verb_ok("resize", &["web", "--cpu", "250m/700m", "--memory", "96Mi"]);
    let of_pod = daemon.client().pod_info(&pod.id)["config"]["pod_resources"]["containers"][0]["resources"].clone();
    let of_container = daemon.client().container_info(&id)["config"]["kubernetes_resources"].clone();
    assert_eq!(of_pod, of_container);
    let expected = serde_json::json!({
        "requests": { "cpu": "250m", "memory": "96Mi" }, "limits": { "cpu": "700m", "memory": "96Mi" },
    });
    assert_eq!(of_pod, expected);
    let [cpu, _, memory] = kernel_limits(&daemon, &format!("pod{}", pod.id));
    assert_eq!((cpu, memory), ("70000 100000".to_owned(), (96_i64 << 20).to_string()));
}

#[test]
fn a_cpuset_is_changed_in_place() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    daemon.env.verb_ok("resize", &["web", "--cpuset-cpus", "0"]);
    assert_eq!(daemon.client().in_force(&id).cpuset_cpus, "0");
    let name = if kernel_state::is_v2() { "cpu.max" } else { "cpu.cfs_quota_us" };
    assert!(crate::update::file(&daemon, &id, name).exists());
    assert_limits(&daemon, &id, 500, 64);
}

#[test]
fn raising_a_container_above_its_pod_is_warned_about_and_the_effective_limit_is_shown() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(500, 40));
    });
    daemon.client().run_limited(&pod, "web", limits(300, 32));
    let arguments = ["web", "--memory", "500Mi", "--keep-pod"];
    for dry_run in [&["--dry-run"][..], &[]] {
        let output = daemon.env.verb("resize", &[&arguments[..], dry_run].concat()).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        let warned = errors(&output);
        let expected = "crisp: warning: container web: memory 500Mi is above the limit of the pod cgroup /";
        assert!(warned.contains(expected) && warned.contains("; 40Mi stays effective"), "{warned}");
        let shown = text(&output).contains("container web: memory: effective 40Mi, set by the pod cgroup /");
        assert_eq!(shown, dry_run.is_empty(), "{}", text(&output));
    }
    // Together with its pod, which becomes 72 MiB, it is raised without a warning.
    daemon.env.verb_ok("resize", &["web", "--memory", "32Mi", "--keep-pod"]);
    let output = daemon.env.verb("resize", &["web", "--memory", "64Mi"]).output().unwrap();
    assert!(output.status.success() && !errors(&output).contains("warning"), "{}", errors(&output));
}

#[test]
fn the_forecast_is_a_limit_that_the_kernel_accepts_and_changes_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("shop");
    let web = holding(&daemon, &pod, "web", 24, 256);
    let before = kernel_limits(&daemon, &web);
    let forecast = |target: &str, more: &[&str]| {
        let arguments = [&[target, "--memory", "?", "--json"], more].concat();
        serde_json::from_str::<serde_json::Value>(&daemon.env.verb_ok("resize", &arguments)).unwrap()
    };
    let found = forecast("shop/web", &[]);
    let bytes = |key: &str| found[key].as_u64().unwrap_or_else(|| panic!("{key}: {found:#}"));
    assert_eq!((&found["kind"], &found["name"], bytes("limit")), (&"container".into(), &"web".into(), 256 << 20));
    assert!(bytes("anonymous") >= 24 << 20 && bytes("usage") >= bytes("anonymous"), "{found:#}");
    assert_eq!(bytes("smallest_limit"), (bytes("usage") - bytes("reclaimable")).next_multiple_of(4096));
    assert_eq!(kernel_limits(&daemon, &web), before);
    let of_pod = forecast("shop", &[]);
    assert_eq!((&of_pod[0]["kind"], &of_pod[1]["name"]), (&"pod".into(), &"web".into()), "{of_pod:#}");
    let words = daemon.env.verb_ok("resize", &["web", "--memory", "?"]);
    assert!(words.contains("smallest limit that would be accepted now: "), "{words}");
    // The kernel agrees: far less is refused, a little more is accepted.
    let refused = daemon.env.verb_fails("resize", &["web", "--memory", &(bytes("anonymous") / 2).to_string()]);
    assert!(refused.contains("below current usage"), "{refused}");
    let fits = (bytes("smallest_limit") + (2 << 20)).to_string();
    daemon.env.verb_ok("resize", &["web", "--memory", &fits]);
    assert_eq!(client.in_force(&web).memory_limit_in_bytes.to_string(), fits);
    for (arguments, word) in [
        (&["web", "--memory", "?", "--cpu", "1"][..], "a question, not a change"),
        (&["web", "--memory", "?", "--dry-run"], "a question, not a change"),
        (&["web", "--memory", "1Gi", "--probe"], "needs --memory '?'"),
        (&["shop", "web=memory:?"], "a question, not a change"),
    ] {
        let words = daemon.env.verb_fails("resize", arguments);
        assert!(words.contains(word), "{arguments:?}: {words}");
    }
    if kernel_state::is_v2() {
        let probed = forecast("web", &["--probe"]);
        assert!(
            probed["probe"]["ended"].is_string() && probed["probe"]["usage"].as_u64() > Some(24 << 20),
            "{probed:#}"
        );
    } else {
        let words = daemon.env.verb_fails("resize", &["web", "--memory", "?", "--probe"]);
        assert!(words.contains("needs memory.reclaim"), "{words}");
    }
}
