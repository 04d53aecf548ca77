//! `crisp bench`: measures every figure and removes all its objects, also if steps fail.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::harness::{Daemon, program};
use crate::support::image_fixture::{Archive, BOX};
use crate::support::registry_fixture::Registry;

/// Runs `crisp bench` compared with itself; returns exit code, output, JSON and HTML.
fn bench(daemon: &Daemon, image: &str, words: &[&str]) -> (Option<i32>, String, Value, String) {
    let socket = daemon.env.socket().display().to_string();
    let [json, html] = ["bench.json", "bench.html"].map(|name| daemon.env.dir().join(name).display().to_string());
    // Below the test's cgroup, so that the test's cleanup check finds leftovers.
    let cgroup = format!("{}/bench", daemon.env.cgroup());
    let (ours, again) = (format!("ours={socket}"), format!("again={socket}"));
    let mut arguments = vec!["bench"];
    arguments.extend_from_slice(words);
    arguments.extend(["--socket", &ours, "--compare", &again, "--image", image, "--cgroup", &cgroup]);
    arguments.extend(["--json", &json, "--html", &html, "--host-network"]);
    let Output { status, stdout, stderr } = daemon.env.crisp(&arguments).output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let lines = stderr.lines().filter(|line| !line.starts_with("bench: "));
    let stdout = lines.fold(stdout, |all, line| all + line + "\n");
    let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap();
    (status.code(), stdout, serde_json::from_str(&read(&json)).unwrap(), read(&html))
}

const FIGURES: [&str; 39] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "pod + container ready",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "teardown",
    "pod life: processor time",
    "pod lives, one at a time",
    "pod lives, several at once",
    "ready, several at once",
    "other processes: CPU time in a second",
    "daemon memory (PSS)",
    "shim memory of a pod (PSS)",
    "shim memory of a pod (private)",
    "daemon program",
    "ExecSync true",
    "ExecSync true: processor time",
    "update memory",
    "update cpu",
    "update nothing",
    "ContainerStatus",
    "PodSandboxStatus",
    "Status",
    "ImageFsInfo",
    "ListContainers",
    "ListPodSandbox",
    "ListContainerStats",
    "ListPodSandboxStats",
    "storm: ContainerStatus",
    "storm: updates",
    "exec output",
    "forwarded port",
    "log: processor time of daemon and shim",
    "pull absent",
    "pull present",
    "RemoveImage",
];

#[test]
fn bench_measures_all_figures_without_errors_and_leaves_nothing() {
    let registry = Registry::start();
    // Not the image of the containers: the benchmark removes it with all its tags.
    registry.push(&Archive::new("x").with("Env", json!(["PATH=/bin", "PULLED=yes"])), "small", "1");
    let pulled = format!("{}/small:1", registry.host());
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let few = "all --rounds 2 --pods 2 --at-once 2 --steps 1,2 --stream-mib 3 --log-mib 2 --storm 20 --storm-seconds 1 --pull-size 1x0 --pull";
    let mut words: Vec<&str> = few.split(' ').collect();
    words.push(&pulled);
    let (code, table, json, html) = bench(&daemon, BOX, &words);
    assert_eq!(code, Some(0), "{table}");
    for runtime in json["runtimes"].as_array().unwrap() {
        assert_eq!(runtime["errors"], 0, "{table}");
        let figures = runtime["figures"].as_array().unwrap();
        for name in FIGURES {
            let found =
                figures.iter().find(|figure| figure["name"] == name).unwrap_or_else(|| panic!("{name}\n{table}"));
            assert!(found["p50"].as_f64().is_some_and(|value| value >= 0.0), "{found}");
        }
        let growth = runtime["growth"].as_array().unwrap();
        let pods: Vec<_> = growth.iter().map(|step| (step["pods"].clone(), step["containers"].clone())).collect();
        assert_eq!(pods, [(1.into(), 2.into()), (2.into(), 4.into())]);
    }
    let names: Vec<_> = json["runtimes"].as_array().unwrap().iter().map(|runtime| &runtime["name"]).collect();
    assert_eq!(names, ["ours", "again"]);
    for comparison in json["comparisons"].as_array().unwrap() {
        let [low, ratio, high] = ["low", "ratio", "high"].map(|key| comparison[key].as_f64().unwrap());
        assert!(low <= ratio && ratio <= high && comparison["to"] == "again", "{comparison}");
    }
    let floor = json["floor"].as_array().unwrap();
    for name in ["pod + container ready", "teardown", "update memory"] {
        let found = floor.iter().find(|figure| figure["name"] == name).unwrap_or_else(|| panic!("{name}\n{table}"));
        assert!(found["errors"] == 0 && found["p50"].as_f64().is_some_and(|value| value > 0.0), "{found}");
    }
    assert!(table.contains("pod + container ready") && table.contains("budgets: "), "{table}");
    let command = json["command"].as_str().unwrap();
    assert!(command.contains(" bench all --rounds 2 ") && table.contains(command), "{table}");
    let directories = json["runtimes"][0]["directories"].as_array().unwrap();
    let named: Vec<&str> = directories.iter().map(|directory| directory["of"].as_str().unwrap()).collect();
    assert_eq!(named, ["images", "containers", "root", "state"], "{table}");
    let images = directories[0]["filesystem"].as_str().unwrap();
    assert!(table.contains(&format!("images on {images}, containers on ")), "{table}");
    let date = json["date"].as_str().unwrap();
    assert!(date.ends_with('Z') && html.contains(date) && html.contains(images), "{date} {images}");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("</svg>"));
    daemon.wait_until_like(&before);
}

#[test]
fn failed_steps_are_counted_and_leave_nothing() {
    let daemon = Daemon::start();
    let before = daemon.snapshot();
    let words = ["life", "exec", "list", "scale", "--steps", "1", "--rounds", "2", "--pods", "1"];
    let (code, table, json, _) = bench(&daemon, "crisp.test/absent:1", &words);
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("crisp: ours: CreateContainer failed every time; the first of "), "{table}");
    let ours = &json["runtimes"][0];
    let figure = |name: &str| ours["figures"].as_array().unwrap().iter().find(|figure| figure["name"] == name).unwrap();
    assert_eq!((&figure("RunPodSandbox")["errors"], &figure("RunPodSandbox")["count"]), (&0.into(), &2.into()));
    assert_eq!((&figure("pod + container ready")["count"]), &Value::from(0));
    assert!(figure("CreateContainer")["errors"].as_u64().unwrap() >= 2, "{table}");
    assert!(figure("CreateContainer")["first_error"].as_str().unwrap().contains("absent"), "{table}");
    // Nothing is measured with pods that do not exist.
    let names: Vec<&str> = ours["figures"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert!(!names.contains(&"ListContainers") && !names.contains(&"daemon memory (PSS)"), "{names:?}");
    assert!(json["budgets"].as_array().unwrap().is_empty() && ours["growth"].as_array().unwrap().is_empty(), "{table}");
    assert!(ours["errors"].as_u64().unwrap() > 0 && table.contains("\nerrors\n"), "{table}");
    daemon.wait_until_like(&before);
}

#[test]
fn the_daemons_memory_is_the_same_whichever_file_the_benchmark_runs_from() {
    let daemon = Daemon::start();
    let (socket, copy) = (format!("ours={}", daemon.env.socket().display()), daemon.env.dir().join("client"));
    let cgroup = format!("{}/bench", daemon.env.cgroup());
    let json = daemon.env.dir().join("bench.json");
    fs::copy(program("crisp"), &copy).unwrap();
    let words =
        "bench list --rounds 3 --pods 1 --host-network --socket SOCKET --image IMAGE --cgroup CGROUP --json FILE";
    let mut seen = Vec::new();
    // The first run makes the daemon load all that the two measured ones use.
    for file in [&copy, &program("crisp"), &copy] {
        let words = words.split(' ').map(|word| match word {
            "SOCKET" => socket.clone(),
            "IMAGE" => BOX.to_owned(),
            "CGROUP" => cgroup.clone(),
            "FILE" => json.display().to_string(),
            word => word.to_owned(),
        });
        let output = Command::new(file).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let ours = &result["runtimes"][0];
        let figures = ours["figures"].as_array().unwrap();
        let value = |name: &str| figures.iter().find(|f| f["name"] == name).and_then(|f| f["p50"].as_f64()).unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        let shared = ours["shares_program"].as_bool().unwrap();
        assert_eq!(table.contains("the benchmark runs from the same file"), shared, "{table}");
        seen.push((shared, value("daemon memory (PSS)")));
    }
    let [_, (true, same), (false, other)] = seen[..] else { panic!("{seen:?}") };
    assert!((same - other).abs() < other / 20.0, "{seen:?}");
}

#[test]
fn files_that_cannot_be_written_are_found_before_the_run() {
    let daemon = Daemon::start();
    let socket = daemon.env.socket().display().to_string();
    let absent = daemon.env.dir().join("absent/a.html").display().to_string();
    for option in ["--html", "--json"] {
        let output = daemon.env.crisp(&["bench", "status", "--socket", &socket, option, &absent]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
        assert!(errors.starts_with("crisp: writing ") && errors.contains(&absent), "{errors}");
    }
    let output = daemon.env.crisp(&["bench", "status", "--socket", "/nope"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "crisp: connecting the benchmark to the CRI socket /nope: No such file or directory (os error 2)\n"
    );
}
