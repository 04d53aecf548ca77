//! A node for tests: temporary directories, and plugins that are shell scripts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::Bandwidth;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::attachment::Pod;
use crate::cni::{Cni, Settings};

/// The start of every plugin: it records its input in `$log`. `$me` is its name.
const PRELUDE: &str = r#"me=${0##*/}
input=$(cat)
echo "$CNI_COMMAND $me" >> "$log/calls"
printf '%s' "$input" > "$log/$me.$CNI_COMMAND.stdin"
cat /proc/$$/environ > "$log/$me.$CNI_COMMAND.env"
"#;

/// Responds as a correct plugin; `VERSIONS` and `RESULT` are filled in.
const GOOD: &str = r#"case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": VERSIONS}' ;;
ADD) echo 'RESULT' ;;
esac
"#;

/// A result with one address of each family.
pub(crate) const RESULT: &str = r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}],
"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1}, {"address": "fd00::5/64", "interface": 1}]}"#;

/// Slow machines get more time.
pub(crate) fn slow(time: Duration) -> Duration {
    time * std::env::var("CRISP_TEST_SLOW").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

pub(crate) struct TestEnv {
    dir: TempDir,
    pub(crate) cni: Cni,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self::with_timeout(slow(Duration::from_secs(60)))
    }

    pub(crate) fn with_timeout(timeout: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["bin", "log"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        let cni = Cni::new(settings(dir.path(), timeout));
        Self { dir, cni }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Settings that change while the daemon runs.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = (*self.cni.settings()).clone();
        change(&mut settings);
        self.cni.set(settings);
    }

    /// The same node after a restart of the daemon.
    pub(crate) fn restart(&mut self) {
        self.cni = Cni::new((*self.cni.settings()).clone());
    }

    /// Writes a file of the directory of networks, as editors do.
    pub(crate) fn conf(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path("conf")).unwrap();
        fs::write(self.path("aside"), text).unwrap();
        fs::rename(self.path("aside"), self.path("conf").join(name)).unwrap();
    }

    /// The same as a `.conflist` of version 1.0.0 with these plugins, each a JSON object without
    /// `type`.
    pub(crate) fn list(&self, plugins: &[(&str, Value)]) {
        self.list_of(&json!({ "cniVersion": "1.0.0" }), plugins);
    }

    pub(crate) fn list_of(&self, head: &Value, plugins: &[(&str, Value)]) {
        let mut list = head.clone();
        list["name"] = json!("net");
        list["plugins"] = plugins
            .iter()
            .map(|(program, conf)| {
                let mut conf = conf.clone();
                conf["type"] = json!(program);
                conf
            })
            .collect();
        self.conf("10-net.conflist", &list.to_string());
    }

    /// Creates a plugin that records its input and then runs `script`.
    pub(crate) fn plugin(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        let text = format!("#!/bin/sh\nlog={}\n{PRELUDE}{script}", self.path("log").display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Creates a plugin that succeeds at every verb.
    pub(crate) fn good(&self, name: &str) {
        self.speaking(name, r#"["0.3.1", "0.4.0", "1.0.0", "1.1.0"]"#);
    }

    pub(crate) fn speaking(&self, name: &str, versions: &str) {
        self.plugin(name, &GOOD.replace("VERSIONS", versions).replace("RESULT", RESULT));
    }

    /// Returns the calls so far, in order: `ADD bridge`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log/calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The same without calls of VERSION.
    pub(crate) fn deeds(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| !call.starts_with("VERSION")).collect()
    }

    pub(crate) fn forget_calls(&self) {
        fs::remove_file(self.path("log/calls")).unwrap();
    }

    /// Returns the last stdin of a plugin.
    pub(crate) fn stdin_of(&self, plugin: &str, verb: &str) -> Value {
        let path = self.path("log").join(format!("{plugin}.{verb}.stdin"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    pub(crate) fn env(&self, plugin: &str, verb: &str) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.path("log").join(format!("{plugin}.{verb}.env"))).unwrap();
        let pairs = text.split_terminator('\0').map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Returns the names of the files in the directory of records.
    pub(crate) fn cached(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("cache")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

pub(crate) fn settings(dir: &Path, timeout: Duration) -> Settings {
    Settings {
        conf_dir: dir.join("conf"),
        bin_dirs: vec![dir.join("bin-first"), dir.join("bin")],
        cache_dir: dir.join("cache"),
        timeout,
        template: None,
    }
}

/// Returns a pod in the namespace of this process, which no fake plugin changes.
pub(crate) fn pod(id: &str) -> Pod {
    Pod {
        id: id.to_owned(),
        name: "web-0".to_owned(),
        namespace: "shop".to_owned(),
        uid: "c0ffee".to_owned(),
        netns: Some("/proc/self/ns/net".into()),
        ports: Vec::new(),
        bandwidth: Bandwidth::default(),
        dns: None,
        annotations: BTreeMap::new(),
        cgroup: String::new(),
    }
}

/// Returns an error with its sources.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
