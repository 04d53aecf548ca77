//! The JSON of every command against its form in docs/json.md.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::update::limits;

/// Returns the blocks of each section of the page.
fn documented() -> BTreeMap<String, Vec<Value>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections = page.split("\n## ").skip(1).map(|section| {
        let (heading, rest) = section.split_once('\n').unwrap();
        let blocks = rest.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap());
        (heading.to_owned(), blocks.map(|block| serde_json::from_str(block).unwrap()).collect())
    });
    sections.collect()
}

/// Panics if `found` has other keys or types than `form`; null fits everything. `more`: further keys are allowed.
fn assert_form(found: &Value, form: &Value, more: bool, path: &str) {
    match (found, form) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(found), Value::Object(form)) => {
            for (key, value) in form {
                let found = found.get(key).unwrap_or_else(|| panic!("{path}.{key} is documented and missing"));
                assert_form(found, value, more, &format!("{path}.{key}"));
            }
            let other: Vec<_> = found.keys().filter(|key| !more && !form.contains_key(*key)).collect();
            assert!(other.is_empty(), "{path}: {other:?} is not documented");
        }
        (Value::Array(found), Value::Array(form)) => {
            for (index, value) in found.iter().enumerate() {
                if let Some(form) = form.first() {
                    assert_form(value, form, more, &format!("{path}[{index}]"));
                }
            }
        }
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_)) => {}
        (found, form) => panic!("{path}: {found} does not have the type of {form}"),
    }
}

#[test]
fn the_json_of_commands_has_the_documented_form() {
    let daemon = Daemon::start();
    let form = documented();
    let run = |command: &str, arguments: &[&str]| -> Value {
        let mut words = command.split(' ').skip(1);
        let verb = words.next().unwrap();
        let arguments: Vec<&str> = words.chain(arguments.iter().copied()).chain(["--json"]).collect();
        serde_json::from_str(&daemon.env.verb_ok(verb, &arguments)).unwrap()
    };
    let check = |command: &str, arguments: &[&str]| {
        let found = run(command, arguments);
        assert_form(&found, &form[command][0], false, command);
        found
    };
    let pod = daemon.run_pod_with("shop", |config| {
        config.linux.get_or_insert_default().resources = Some(limits(500, 192));
    });
    daemon.client().run_limited(&pod, "web", limits(500, 64));
    let resized = check("crisp resize", &["tests/shop/web", "--memory", "128Mi", "--cpu", "1m"]);
    for list in ["warnings", "steps", "files"] {
        assert!(!resized[list].as_array().unwrap().is_empty(), "{list} compared nothing: {resized:#}");
    }
    check("crisp resize", &["shop", "web=memory:64Mi", "--dry-run"]);
    let forecast = run("crisp resize", &["tests/shop/web", "--memory", "?"]);
    assert_form(&forecast, &form["crisp resize"][1], false, "crisp resize --memory ?");
    let history = daemon.env.verb_ok("history", &["tests/shop/web", "--json"]);
    for line in history.lines() {
        let resize: Value = serde_json::from_str(line).unwrap();
        assert_form(&resize, &form["crisp history"][0], false, "crisp history");
        assert!(!resize["resources"].as_array().unwrap().is_empty(), "{resize:#}");
    }
    for (arguments, block) in [(&[][..], 0), (&["tests/shop/web"], 1), (&["shop"], 3)] {
        assert_form(&run("crisp explain", arguments), &form["crisp explain"][block], true, "crisp explain");
    }
    let web = run("crisp explain", &["tests/shop/web", "--inside"]);
    assert_form(&web["inside"], &form["crisp explain"][2], true, "crisp explain .inside");
    assert!(web["inside"].is_object());
    let shop = run("crisp explain", &["shop"]);
    assert_form(&shop["containers"][0], &form["crisp explain"][1], true, "crisp explain .containers[0]");

    let file = daemon.env.dir().join("image.tar");
    Archive::new("crisp.test/json:1")
        .with("Env", json!(["PATH=/bin", "JSON=1"]))
        .with_dir("json")
        .write_docker_archive(&file);
    let imported = check("crisp image import", &[file.to_str().unwrap()]);
    assert_eq!(imported[0]["tags"], json!(["crisp.test/json:1"]));
    assert_eq!(check("crisp image ls", &[]).as_array().unwrap().len(), 2);
    assert_eq!(check("crisp image prune", &["--all", "--dry-run"])["images"].as_array().unwrap().len(), 1);
    assert_eq!(check("crisp image rm", &["crisp.test/json:1"])[0]["removed"], true);
}

#[test]
fn version_and_settings_are_printed_as_json() {
    let daemon = Daemon::start();
    let output = daemon.env.crisp(&["version", "--json"]).output().unwrap();
    let version: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_form(&version, &documented()["crisp version"][0], false, "crisp version");
    let text = super::text(&daemon.env.crisp(&["version"]).output().unwrap());
    assert!(text.starts_with(&format!("crisp {}", version["version"].as_str().unwrap())), "{text}");
    let settings: Value = serde_json::from_str(&daemon.env.verb_ok("config", &["--json"])).unwrap();
    assert_eq!(settings["listen"], daemon.env.socket().display().to_string());
    for line in daemon.env.verb_ok("config", &[]).lines() {
        let section = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
        if let Some(section) = section.filter(|section| !section.contains(['.', '"'])) {
            assert!(settings[section].is_object(), "{section}: {settings:#}");
        }
    }
}

#[test]
fn verbose_responses_have_plain_limits() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_limited(&pod, "web", limits(500, 64));
    let info = daemon.client().container_info(&id);
    for limits in [&info["resources"]["asked"], &info["config"]["resources"]] {
        assert_eq!((&limits["memory"], &limits["cpu_quota"]), (&(64 << 20).into(), &50_000.into()), "{limits:#}");
    }
    let text = info.to_string() + &daemon.client().pod_info(&pod.id).to_string();
    for shape in ["{\"Bytes\":", "{\"Micros\":", "{\"Host\":", "{\"Id\":", "{\"Localhost\":", "\"Unlimited\""] {
        assert!(!text.contains(shape), "{shape}: {text}");
    }
}
