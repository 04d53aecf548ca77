//! Reloads the settings of a running daemon: applies those that need no restart, and lists the rest.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use safe_fs::FileStamp;

use super::{
    Config, ConfigError, LogConfig, MetricsAccess, MetricsConfig, MetricsListen, NetworkConfig, Origin, RawConfig,
    metrics,
};

/// The active settings, and the stamp of their file when it was last read.
#[derive(Debug)]
pub struct ConfigReloader {
    in_force: Config,
    stamp: Option<FileStamp>,
    /// Keys that need a restart since the last reload.
    waiting: Vec<&'static str>,
    /// The files of the metrics endpoint, which are renewed in place.
    files: Vec<(PathBuf, Option<FileStamp>)>,
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
    /// Keys that needed a restart before, and have their active values again.
    pub withdrawn: Vec<&'static str>,
}

impl ConfigReloader {
    pub fn new(in_force: Config) -> Self {
        let stamp = FileStamp::read(in_force.origin.path());
        let files = stamped(in_force.metrics_files.clone());
        Self { in_force, stamp, waiting: Vec::new(), files }
    }

    /// Returns whether the file, or one of the metrics endpoint, has changed since it was last read.
    pub fn is_due(&self) -> bool {
        FileStamp::read(self.in_force.origin.path()) != self.stamp
            || self.files.iter().any(|(path, stamp)| FileStamp::read(path) != *stamp)
    }

    /// Records that metrics are still served as in `metrics`, so that the next reload tries the change again.
    pub fn still_listens(&mut self, metrics: Option<MetricsConfig>) {
        self.in_force.metrics = metrics;
    }

    /// Reloads the file; returns `None` if no setting has changed. An invalid file changes nothing.
    /// Blocks on file I/O.
    pub fn read(&mut self) -> Result<Option<ConfigChange>, ConfigError> {
        let Origin { file, overrides } = self.in_force.origin.clone();
        // Before the file is read, so that a change during the read is detected next time.
        self.stamp = FileStamp::read(self.in_force.origin.path());
        let path = self.in_force.origin.path();
        // Reading a FIFO would wait for a writer, and no later change of the file would be read.
        if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
            return Err(ConfigError::NotAFile { file: path.to_owned() });
        }
        let raw = RawConfig::load(file.as_deref(), overrides)?;
        self.files = stamped(metrics::files(&raw.metrics));
        let new = raw.resolve()?;
        let mut change = merge(&self.in_force, new);
        self.in_force = change.config.clone();
        let before = std::mem::replace(&mut self.waiting, change.waiting.clone());
        change.withdrawn = before.into_iter().filter(|key| !change.waiting.contains(key)).collect();
        let same = change.applied.is_empty() && change.waiting.is_empty() && change.withdrawn.is_empty();
        Ok((!same).then_some(change))
    }
}

fn listen_of(metrics: &Option<MetricsConfig>) -> Option<&MetricsListen> {
    metrics.as_ref().map(|metrics| &metrics.listen)
}

fn access_of(metrics: &Option<MetricsConfig>) -> MetricsAccess {
    metrics.as_ref().map(|metrics| metrics.access.clone()).unwrap_or_default()
}

fn stamped(files: Vec<PathBuf>) -> Vec<(PathBuf, Option<FileStamp>)> {
    files.into_iter().map(|path| (path.clone(), FileStamp::read(&path))).collect()
}

/// A setting or section, compared.
struct Compared {
    key: &'static str,
    needs_restart: bool,
    differs: bool,
}

/// Compares all settings. The full destructuring makes a new setting a compile error until it is compared here.
fn compare(old: &Config, new: &Config) -> [Compared; 25] {
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
        metrics_files: _,
        tracing,
        origin: _,
    } = new;
    let live = |key, differs| Compared { key, needs_restart: false, differs };
    let restart = |key, differs| Compared { key, needs_restart: true, differs };
    [
        live("log.level", old.log.level != *level),
        live("container.exec_output_max", old.exec_output_max != *exec_output_max),
        live("container.exec_output_total", old.exec_output_total != *exec_output_total),
        live("container, handlers", old.handlers != *handlers),
        live("resources", old.resources != *resources),
        live("stop", old.stop != *stop),
        live("cdi", old.cdi != *cdi),
        live("network.mode", old.network.mode != *mode),
        live("network.cni", old.network.cni != *cni),
        live("image (limits of pulls)", old.pull != *pull),
        live("metrics.listen", listen_of(&old.metrics) != listen_of(metrics)),
        live("metrics (certificate and token)", access_of(&old.metrics) != access_of(metrics)),
        live("image.pinned", old.pinned != *pinned),
        live("registries", old.registries != *registries),
        restart("listen", old.listen != *listen),
        restart("socket_mode", old.socket_mode != *socket_mode),
        restart("socket_group", old.socket_group != *socket_group),
        restart("root", old.root != *root),
        restart("state", old.state != *state),
        restart("log.format", old.log.format != *format),
        restart("cgroup", old.cgroup != *cgroup),
        restart("shim.path", old.shim != *shim),
        restart("network.bridge", old.network.bridge != *bridge),
        restart("stream", old.stream != *stream),
        restart("tracing", old.tracing != *tracing),
    ]
}

/// Takes over the settings that need no restart.
fn merge(old: &Config, new: Config) -> ConfigChange {
    let differing = compare(old, &new).into_iter().filter(|setting| setting.differs);
    let (waiting, applied): (Vec<_>, Vec<_>) = differing.partition(|setting| setting.needs_restart);
    let keys = |settings: Vec<Compared>| settings.into_iter().map(|setting| setting.key).collect();
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
    ConfigChange { config, applied: keys(applied), waiting: keys(waiting), withdrawn: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::super::{LogFormat, MismatchPolicy, NetworkMode};
    use super::*;

    #[test]
    fn the_header_of_the_configuration_file_lists_the_settings_that_need_a_restart() {
        let file = include_str!("../../runtime-config/crisp.toml");
        let header: String = file.lines().map_while(|line| line.strip_prefix('#')).collect();
        let (_, rest) = header.split_once("except these: ").unwrap();
        let (list, _) = rest.split_once(". ").unwrap();
        let listed: Vec<_> = list.split([',', ' ']).filter(|word| !word.is_empty() && *word != "and").collect();
        let env = TestEnv::new();
        env.write("");
        let config = env.reload().in_force;
        let compared = compare(&config, &config);
        let restart = compared.iter().filter(|setting| setting.needs_restart).map(|setting| setting.key);
        let is_section = |key: &str| file.lines().any(|line| line == format!("[{key}]"));
        let restart = restart.map(|key| if is_section(key) { format!("[{key}]") } else { key.to_owned() });
        assert_eq!(listed, restart.collect::<Vec<_>>());
    }

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
        let ConfigChange { config, applied, waiting, .. } = reload.read().unwrap().unwrap();
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
        assert_eq!((again.applied.len(), &again.waiting), (0, &waiting), "still needs a restart");
        env.write("[log]\nformat = \"json\"");
        let less = reload.read().unwrap().unwrap();
        assert_eq!((less.waiting, less.withdrawn), (vec!["log.format"], vec!["root", "network.bridge", "tracing"]));
        env.write("");
        let back = reload.read().unwrap().unwrap();
        assert_eq!((back.waiting, back.withdrawn), (Vec::new(), vec!["log.format"]));
        assert!(reload.read().unwrap().is_none());
    }

    #[test]
    fn a_fifo_or_an_endless_file_in_place_of_the_file_is_refused_and_later_changes_are_read() {
        let env = TestEnv::new();
        env.write("[stop]\ngrace_max = 5");
        let mut reload = env.reload();
        fs::remove_file(env.file()).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, env.file(), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = reload.read().unwrap_err();
        assert!(matches!(error, ConfigError::NotAFile { .. }), "{error:?}");
        fs::remove_file(env.file()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", env.file()).unwrap();
        let error = reload.read().unwrap_err();
        assert!(matches!(error, ConfigError::TooLong { .. }), "{error:?}");
        fs::remove_file(env.file()).unwrap();
        env.write("[stop]\ngrace_max = 7");
        assert_eq!(reload.read().unwrap().unwrap().config.stop.grace_max, Duration::from_secs(7));
    }

    #[test]
    fn a_renewed_token_is_applied_without_a_change_of_the_configuration() {
        let env = TestEnv::new();
        let token = env.dir.path().join("token");
        let put = |text: &str, mode| {
            fs::write(&token, text).unwrap();
            fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("0123456789abcdef", 0o600);
        env.write(&format!("[metrics]\nlisten = \"127.0.0.1:9\"\ntoken_file = {token:?}"));
        let mut reload = env.reload();
        assert!(!reload.is_due());
        put("a renewal in progress", 0o600);
        assert!(reload.is_due() && reload.read().is_err() && !reload.is_due());
        put("fedcba9876543210", 0o600);
        assert!(reload.is_due());
        let change = reload.read().unwrap().unwrap();
        assert_eq!(change.applied, ["metrics (certificate and token)"]);
        assert!(change.config.metrics.unwrap().access.token.unwrap().matches(b"fedcba9876543210"));
        put("fedcba9876543210", 0o644);
        assert!(reload.is_due() && reload.read().is_err());
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
