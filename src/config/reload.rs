//! Reloads the settings of a running daemon: applies those that need no restart, and lists the rest.

use safe_fs::FileStamp;

use super::{Config, ConfigError, LogConfig, MetricsListen, NetworkConfig, Origin, RawConfig};

/// The active settings, and the stamp of their file when it was last read.
#[derive(Debug)]
pub struct ConfigReloader {
    in_force: Config,
    stamp: Option<FileStamp>,
}

/// The changes of a reload.
#[derive(Debug)]
pub struct ConfigChange {
    /// The active settings. Those that need a restart have their old values.
    pub config: Config,
    /// Changed keys or sections that are active now.
    pub applied: Vec<&'static str>,
    /// Changed keys or sections that need a restart.
    pub waiting: Vec<&'static str>,
}

impl ConfigReloader {
    pub fn new(in_force: Config) -> Self {
        let stamp = FileStamp::read(in_force.origin.path());
        Self { in_force, stamp }
    }

    /// Returns whether the file has changed since it was last read.
    pub fn is_due(&self) -> bool {
        FileStamp::read(self.in_force.origin.path()) != self.stamp
    }

    /// Records that metrics are still served on `listen`, so that the next reload tries the change again.
    pub fn still_listens(&mut self, listen: Option<MetricsListen>) {
        self.in_force.metrics = listen;
    }

    /// Reloads the file; returns `None` if no setting has changed. An invalid file changes nothing.
    /// Blocks on file I/O.
    pub fn read(&mut self) -> Result<Option<ConfigChange>, ConfigError> {
        let Origin { file, overrides } = self.in_force.origin.clone();
        // Before the file is read, so that a change during the read is detected next time.
        self.stamp = FileStamp::read(self.in_force.origin.path());
        let new = RawConfig::load(file.as_deref(), overrides)?.resolve()?;
        let change = merge(&self.in_force, new);
        self.in_force = change.config.clone();
        let same = change.applied.is_empty() && change.waiting.is_empty();
        Ok((!same).then_some(change))
    }
}

/// Adds `key` to `list` if the two values differ.
fn compare<T: PartialEq>(list: &mut Vec<&'static str>, key: &'static str, old: &T, new: &T) {
    if old != new {
        list.push(key);
    }
}

/// Compares all settings. The full destructuring makes a new setting a compile error until it is compared here.
fn merge(old: &Config, new: Config) -> ConfigChange {
    let (mut applied, mut waiting) = (Vec::new(), Vec::new());
    let Config {
        listen,
        socket_mode,
        socket_group,
        root,
        state,
        log: LogConfig { level, format },
        cgroup,
        shim,
        exec_output_max,
        exec_output_total,
        handlers,
        resources,
        cdi,
        stop,
        network: NetworkConfig { mode, cni, bridge },
        stream,
        pinned,
        pull,
        registries,
        metrics,
        tracing,
        origin: _,
    } = &new;
    compare(&mut applied, "log.level", &old.log.level, level);
    compare(&mut applied, "container.exec_output_max", &old.exec_output_max, exec_output_max);
    compare(&mut applied, "container.exec_output_total", &old.exec_output_total, exec_output_total);
    compare(&mut applied, "container, handlers", &old.handlers, handlers);
    compare(&mut applied, "resources", &old.resources, resources);
    compare(&mut applied, "stop", &old.stop, stop);
    compare(&mut applied, "cdi", &old.cdi, cdi);
    compare(&mut applied, "network.mode", &old.network.mode, mode);
    compare(&mut applied, "network.cni", &old.network.cni, cni);
    compare(&mut applied, "image (limits of pulls)", &old.pull, pull);
    compare(&mut applied, "metrics.listen", &old.metrics, metrics);
    compare(&mut applied, "image.pinned", &old.pinned, pinned);
    compare(&mut applied, "registries", &old.registries, registries);
    compare(&mut waiting, "listen", &old.listen, listen);
    compare(&mut waiting, "socket_mode", &old.socket_mode, socket_mode);
    compare(&mut waiting, "socket_group", &old.socket_group, socket_group);
    compare(&mut waiting, "root", &old.root, root);
    compare(&mut waiting, "state", &old.state, state);
    compare(&mut waiting, "log.format", &old.log.format, format);
    compare(&mut waiting, "cgroup", &old.cgroup, cgroup);
    compare(&mut waiting, "shim.path", &old.shim, shim);
    compare(&mut waiting, "network.bridge", &old.network.bridge, bridge);
    compare(&mut waiting, "stream", &old.stream, stream);
    compare(&mut waiting, "tracing", &old.tracing, tracing);
    let config = Config {
        listen: old.listen.clone(),
        socket_mode: old.socket_mode,
        socket_group: old.socket_group,
        root: old.root.clone(),
        state: old.state.clone(),
        log: LogConfig { level: new.log.level.clone(), format: old.log.format },
        cgroup: old.cgroup.clone(),
        shim: old.shim.clone(),
        network: NetworkConfig { bridge: old.network.bridge.clone(), ..new.network },
        stream: old.stream.clone(),
        tracing: old.tracing.clone(),
        origin: old.origin.clone(),
        ..new
    };
    ConfigChange { config, applied, waiting }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::{LogFormat, MismatchPolicy, NetworkMode};
    use super::*;

    struct TestEnv {
        dir: tempfile::TempDir,
    }

    impl TestEnv {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap() }
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("crisp.toml")
        }

        /// Writes a temporary file and renames it, as editors do.
        fn write(&self, text: &str) {
            let aside = self.dir.path().join("aside");
            let shim = std::env::current_exe().unwrap();
            fs::write(&aside, format!("{text}\n[shim]\npath = {shim:?}\n")).unwrap();
            fs::rename(aside, self.file()).unwrap();
        }

        fn reload(&self) -> ConfigReloader {
            let raw = RawConfig::load(Some(&self.file()), super::super::Overrides::default()).unwrap();
            ConfigReloader::new(raw.resolve().unwrap())
        }
    }

    #[test]
    fn reload_applies_live_settings_and_lists_those_that_need_a_restart() {
        let env = TestEnv::new();
        env.write("");
        let mut reload = env.reload();
        assert!(!reload.is_due());
        assert!(reload.read().unwrap().is_none());
        env.write(
            "root = \"/elsewhere\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n[stop]\ngrace_max = 5\n\
             [resources]\nmismatch = \"refuse\"\n[metrics]\nlisten = \"127.0.0.1:9\"\n[image]\ndownloads = 7\n\
             [cdi]\nannotations = true\n[network]\nmode = \"cni\"\n[network.cni]\ntimeout = 7\n[network.bridge]\nmtu = 1400\n\
             [tracing]\nendpoint = \"localhost:4317\"",
        );
        assert!(reload.is_due());
        let ConfigChange { config, applied, waiting } = reload.read().unwrap().unwrap();
        let live = [
            "log.level",
            "resources",
            "stop",
            "cdi",
            "network.mode",
            "network.cni",
            "image (limits of pulls)",
            "metrics.listen",
        ];
        assert_eq!(applied, live);
        assert_eq!(waiting, ["root", "log.format", "network.bridge", "tracing"]);
        assert_eq!((config.log.level.as_str(), config.log.format), ("debug", LogFormat::Text));
        assert_eq!(config.stop.grace_max, Duration::from_secs(5));
        assert_eq!(config.resources.mismatch, MismatchPolicy::Refuse);
        assert_eq!((config.root, config.tracing), (PathBuf::from("/var/lib/crisp"), None));
        assert_eq!((config.network.mode, config.network.bridge.mtu), (NetworkMode::Cni, None));
        assert_eq!((config.network.cni.timeout, config.pull.downloads), (Duration::from_secs(7), 7));
        assert!(config.cdi.annotations);
        assert!(!reload.is_due());
        let again = reload.read().unwrap().unwrap();
        assert_eq!((again.applied.len(), again.waiting), (0, waiting), "still needs a restart");
    }

    #[test]
    fn an_invalid_file_changes_nothing_and_its_error_shows_no_content() {
        let env = TestEnv::new();
        env.write("[stop]\ngrace_max = 5");
        let mut reload = env.reload();
        for bad in ["[stop]\ngrace_max = 6\nhunter2 = \"swordfish\"", "[stop\n# swordfish", "[log]\nlevel = \"a=b=c\""]
        {
            env.write(bad);
            assert!(reload.is_due());
            let error = model::error_chain::chain(&reload.read().unwrap_err());
            assert!(error.contains("crisp.toml") || error.contains("log.level"), "{error}");
            assert!(!error.contains("swordfish"), "{error}");
            assert!(!reload.is_due(), "reported already");
        }
        fs::remove_file(env.file()).unwrap();
        assert!(reload.is_due() && reload.read().is_err());
        env.write("[stop]\ngrace_max = 7");
        let change = reload.read().unwrap().unwrap();
        assert_eq!((change.applied, change.config.stop.grace_max), (vec!["stop"], Duration::from_secs(7)));
    }
}
