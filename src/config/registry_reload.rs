//! Reloads the settings of registries (credentials, certificates, mirrors) before a pull.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::Registries;
use safe_fs::FileStamp;
use sync::Mutex;

use super::{ConfigError, Origin, RawConfig, registries};

/// The settings of registries on disk. The files are not watched; each pull checks them first.
#[derive(Debug)]
pub struct RegistryReloader {
    origin: Origin,
    seen: Mutex<LoadedFiles>,
}

#[derive(Debug)]
struct LoadedFiles {
    /// The stamp of each file when it was read. Empty before the first check, since the files may
    /// have changed after the start.
    files: BTreeMap<PathBuf, Option<FileStamp>>,
    /// The last valid settings.
    good: Registries,
}

impl RegistryReloader {
    pub fn new(origin: Origin, registries: Registries) -> Self {
        Self { origin, seen: Mutex::new(LoadedFiles { files: BTreeMap::new(), good: registries }) }
    }

    /// Reloads the files that have changed and calls `apply` if the settings differ. Blocks on file I/O.
    ///
    /// Invalid settings change nothing and are reported once, until the files change again.
    pub fn refresh(&self, apply: impl FnOnce(Registries)) -> Result<(), ConfigError> {
        // Locked until the end, so that the newest settings are also the last to be applied.
        let mut seen = self.seen.lock();
        if !seen.files.is_empty() && seen.files.iter().all(|(path, stamp)| FileStamp::read(path) == *stamp) {
            return Ok(());
        }
        seen.files.clear();
        let registries = self.read(&mut seen.files)?;
        if registries != seen.good {
            seen.good = registries.clone();
            apply(registries);
        }
        Ok(())
    }

    /// Reads all files. Takes the stamp of each before reading it, so that a change during the read is
    /// detected next time.
    fn read(&self, files: &mut BTreeMap<PathBuf, Option<FileStamp>>) -> Result<Registries, ConfigError> {
        let Origin { file, overrides } = &self.origin;
        let mut look = |path: &Path| {
            files.insert(path.to_owned(), FileStamp::read(path));
        };
        look(self.origin.path());
        let raw = RawConfig::load(file.as_deref(), overrides.clone())?;
        registries::files(&raw.image, &raw.registries).iter().for_each(|path| look(path));
        Ok(registries::resolve(&raw.image, &raw.registries)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    /// A configuration file that can be changed, and its reloader.
    struct TestEnv {
        dir: TempDir,
        live: RegistryReloader,
    }

    impl TestEnv {
        fn new(text: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = Some(dir.path().join("crisp.toml"));
            let live = RegistryReloader::new(Origin { file, ..Origin::default() }, Registries::default());
            let env = Self { dir, live };
            env.write("crisp.toml", text);
            env
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// Writes a temporary file and renames it, as editors do.
        fn write(&self, name: &str, text: &str) {
            let aside = self.path("aside");
            fs::write(&aside, text).unwrap();
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(aside, self.path(name)).unwrap();
        }

        /// Returns the new settings if they changed.
        fn look(&self) -> Result<Option<Registries>, String> {
            let mut new = None;
            self.live
                .refresh(|registries| new = Some(registries))
                .map_err(|error| model::error_chain::chain(&error))?;
            Ok(new)
        }

        fn login(&self) -> String {
            format!("[image]\ncredentials = {:?}\n", self.path("login.json"))
        }
    }

    fn mirror(port: u16) -> String {
        format!("[registries.\"a.example\"]\nmirrors = [\"http://127.0.0.1:{port}\"]\n")
    }

    #[test]
    fn a_change_is_applied_once() {
        let env = TestEnv::new("");
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", &mirror(1));
        let new = env.look().unwrap().unwrap();
        assert_eq!(new.hosts["a.example"].mirrors, ["http://127.0.0.1:1".parse().unwrap()]);
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", &mirror(1));
        assert_eq!(env.look(), Ok(None), "a new file with the same settings");
    }

    #[test]
    fn a_change_before_the_first_check_is_applied() {
        let env = TestEnv::new(&mirror(1));
        assert!(env.look().unwrap().is_some());
    }

    #[test]
    fn an_invalid_file_is_reported_once_and_changes_nothing() {
        let env = TestEnv::new(&mirror(1));
        env.look().unwrap();
        for (bad, words) in [("colour = 1", "colour"), ("[registries.\"a b\"]", "registries.\"a b\"")] {
            env.write("crisp.toml", bad);
            let error = env.look().unwrap_err();
            assert!(error.contains(words), "{error}");
            assert_eq!(env.look(), Ok(None), "reported already");
        }
        env.write("crisp.toml", &mirror(1));
        assert_eq!(env.look(), Ok(None), "nothing had changed");
        fs::remove_file(env.path("crisp.toml")).unwrap();
        assert!(env.look().unwrap_err().contains("crisp.toml"));
        env.write("crisp.toml", &mirror(2));
        assert!(env.look().unwrap().is_some());
    }

    #[test]
    fn files_named_by_settings_are_checked_too() {
        let env = TestEnv::new("");
        let auth = |password: &str| {
            use base64::Engine as _;
            let auth = base64::prelude::BASE64_STANDARD.encode(format!("me:{password}"));
            format!("{{\"auths\": {{\"a.example\": {{\"auth\": \"{auth}\"}}}}}}")
        };
        env.write("crisp.toml", &env.login());
        let error = env.look().unwrap_err();
        assert!(error.contains("image.credentials") && error.contains("login.json"), "{error}");
        env.write("login.json", &auth("one"));
        let one = env.look().unwrap().expect("the file that was missing has appeared");
        env.write("login.json", &auth("two"));
        let two = env.look().unwrap().expect("the password has changed");
        assert_ne!(one.logins, two.logins);
        env.write("login.json", "no JSON");
        assert!(env.look().is_err());
        fs::remove_file(env.path("login.json")).unwrap();
        assert!(env.look().is_err(), "a different error");
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", "");
        assert_eq!(env.look().unwrap(), Some(Registries::default()));
    }

    #[test]
    fn a_changed_file_mode_is_detected() {
        let env = TestEnv::new("");
        env.write("crisp.toml", &env.login());
        env.write("login.json", "{\"auths\": {}}");
        assert_eq!(env.look(), Ok(None));
        fs::set_permissions(env.path("login.json"), fs::Permissions::from_mode(0o644)).unwrap();
        let error = env.look().unwrap_err();
        assert!(error.contains("0644"), "{error}");
    }
}
