//! `crisp explain --inside`: compares a process with its limits, and prints no hostile text.

use cri_api::v1;
use serde_json::{Value, json};

use crate::support::client::container;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::update::limits;

/// Copies busybox to a file with the name of a runtime, and runs a shell from it.
fn shell_named(program: &str, options: &str) -> String {
    format!("cp /bin/busybox /tmp/{program} && exec -a sh /tmp/{program} -c 'echo ready; sleep 100000; :' {options}")
}

fn inside(daemon: &Daemon, target: &str) -> Value {
    let text = daemon.env.verb_ok("explain", &[target, "--inside", "--json"]);
    serde_json::from_str::<Value>(&text).unwrap()["inside"].clone()
}

fn run(daemon: &Daemon, name: &str, script: &str, variables: &[(&str, &str)]) -> String {
    let pod = daemon.run_pod(&format!("pod-{name}"));
    let mut config = container(name, &["sh", "-c", script]);
    config.linux.as_mut().unwrap().resources = Some(limits(500, 256));
    let pair = |(key, value): &(&str, &str)| v1::KeyValue { key: (*key).to_owned(), value: value.as_bytes().to_vec() };
    config.envs.extend(variables.iter().map(pair));
    let id = daemon.client().run_config(&pod, config);
    daemon.client().wait_printed(&id, "ready");
    id
}

#[test]
fn a_process_is_compared_with_its_limits() {
    let daemon = Daemon::start();
    let script = shell_named("java", "-XX:ActiveProcessorCount=4 -Xmx512m");
    let id = run(&daemon, "shop", &script, &[("JAVA_TOOL_OPTIONS", "-Xmx64m -Dpassword=secret")]);
    let found = inside(&daemon, "shop");
    assert_eq!((&found["program"], &found["threads"]), (&"java".into(), &1.into()), "{found:#}");
    let from = json!(["-Xmx", "-XX:ActiveProcessorCount"]);
    let sizing = json!({ "runtime": "Java", "version": null, "cpus": 4, "memory": 536_870_912, "from": from });
    assert_eq!(found["sizing"], sizing, "{found:#}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", found["pid"])).unwrap();
    assert!(status.contains(&format!("Cpus_allowed_list:\t{}\n", found["cpus"].as_str().unwrap())), "{status}");
    let mounts = found["cgroup_mounts"].as_array().unwrap();
    assert!(!mounts.is_empty() && mounts.iter().all(|mount| mount["read_only"] == true), "{found:#}");
    let text = daemon.env.verb_ok("explain", &["shop", "--inside"]);
    for part in ["(java), 1 thread\n", "4 CPUs, heap 512Mi", "the limit is 500m: its threads are throttled", "OOM kill"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    // After a resize that fits, there is no gap.
    daemon.env.verb_ok("resize", &["shop", "--cpu", "4", "--memory", "768Mi"]);
    assert_eq!(inside(&daemon, "shop")["gaps"], json!([]));
    daemon.client().stop(&id, 0).unwrap();
    assert_eq!(inside(&daemon, "shop"), Value::Null);
}

#[test]
fn hostile_names_and_options_are_not_printed() {
    let daemon = Daemon::start();
    let script = shell_named("node", "--max-old-space-size=99999999999999999999 \"$(printf '\\033[31m')\"");
    run(&daemon, "odd", &script, &[]);
    let found = inside(&daemon, "odd");
    assert_eq!((&found["program"], &found["sizing"]["memory"]), (&"node".into(), &Value::Null), "{found:#}");
    let script =
        "cp /bin/busybox \"$(printf '/tmp/a\\033[31m')\" && exec -a sh /tmp/a* -c 'echo ready; sleep 100000; :'";
    run(&daemon, "escape", script, &[]);
    let text = daemon.env.verb_ok("explain", &["escape", "--inside"]);
    assert!(text.contains("(unknown program)") && !text.contains('\u{1b}'), "{text}");
    wait_for("both pods to be listed", seconds(5), || (daemon.client().pods().len() == 2).then_some(()));
}
