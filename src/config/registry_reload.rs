//! Registries may change while the daemon runs: passwords, certificates and mirrors do, and pods do not wait for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::Registries;
use safe_fs::FileStamp;
use sync::{Mutex, RwLock};

use super::{ConfigError, Origin, RawConfig, registries};

/// How registries are reached, as the files on disk have it. Nothing watches them: whoever is about to pull looks.
#[derive(Debug)]
pub struct RegistryReloader {
    origin: Origin,
    seen: Mutex<LoadedFiles>,
    /// Of the last settings that could be used; apart from them, since asking for it must not wait for files.
    search: RwLock<Vec<String>>,
}

#[derive(Debug)]
struct LoadedFiles {
    /// What each file looked like when it was read. Empty before the first look: what was read at the start may have
    /// changed since.
    files: BTreeMap<PathBuf, Option<FileStamp>>,
    /// The last settings that could be used.
    good: Registries,
}

impl RegistryReloader {
    pub fn new(origin: Origin, registries: Registries) -> Self {
        let search = RwLock::new(registries.search.clone());
        Self { origin, seen: Mutex::new(LoadedFiles { files: BTreeMap::new(), good: registries }), search }
    }

    /// Looks whether any file has changed, and hands over the new settings if they are others. Blocks for a moment.
    ///
    /// Settings that cannot be used change nothing and are an error once, until the files change again.
    pub fn refresh(&self, apply: impl FnOnce(Registries)) -> Result<(), ConfigError> {
        // Held to the end, so that the last to look is also the last to apply.
        let mut seen = self.seen.lock();
        if !seen.files.is_empty() && seen.files.iter().all(|(path, stamp)| FileStamp::read(path) == *stamp) {
            return Ok(());
        }
        seen.files.clear();
        let registries = self.read(&mut seen.files)?;
        if registries != seen.good {
            seen.good = registries.clone();
            self.search.write().clone_from(&registries.search);
            apply(registries);
        }
        Ok(())
    }

    /// The registries that are asked for an image whose name has none.
    pub fn search(&self) -> Vec<String> {
        self.search.read().clone()
    }

    /// Each file is looked at before it is read: what changes meanwhile is seen the next time.
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

    /// A configuration file that can be changed, and who looks at it.
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

        /// As editors do: aside, and renamed into place.
        fn write(&self, name: &str, text: &str) {
            let aside = self.path("aside");
            fs::write(&aside, text).unwrap();
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(aside, self.path(name)).unwrap();
        }

        /// What changed, if anything.
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
    fn a_change_is_seen_once_and_no_change_is_none() {
        let env = TestEnv::new("");
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", &mirror(1));
        let new = env.look().unwrap().unwrap();
        assert_eq!(new.hosts["a.example"].mirrors, ["http://127.0.0.1:1".parse().unwrap()]);
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", &mirror(1));
        assert_eq!(env.look(), Ok(None), "another file that says the same");
    }

    #[test]
    fn what_changed_before_the_first_look_is_seen() {
        let env = TestEnv::new(&mirror(1));
        assert!(env.look().unwrap().is_some());
    }

    #[test]
    fn a_bad_file_is_told_once_and_changes_nothing() {
        let env = TestEnv::new(&mirror(1));
        env.look().unwrap();
        for (bad, words) in [("colour = 1", "colour"), ("[registries.\"a b\"]", "registries.\"a b\"")] {
            env.write("crisp.toml", bad);
            let said = env.look().unwrap_err();
            assert!(said.contains(words), "{said}");
            assert_eq!(env.look(), Ok(None), "told already");
        }
        env.write("crisp.toml", &mirror(1));
        assert_eq!(env.look(), Ok(None), "nothing had changed");
        fs::remove_file(env.path("crisp.toml")).unwrap();
        assert!(env.look().unwrap_err().contains("crisp.toml"));
        env.write("crisp.toml", &mirror(2));
        assert!(env.look().unwrap().is_some());
    }

    #[test]
    fn a_file_that_the_settings_name_is_looked_at_too() {
        let env = TestEnv::new("");
        let auth = |password: &str| {
            use base64::Engine as _;
            let auth = base64::prelude::BASE64_STANDARD.encode(format!("me:{password}"));
            format!("{{\"auths\": {{\"a.example\": {{\"auth\": \"{auth}\"}}}}}}")
        };
        env.write("crisp.toml", &env.login());
        let said = env.look().unwrap_err();
        assert!(said.contains("image.credentials") && said.contains("login.json"), "{said}");
        env.write("login.json", &auth("one"));
        let one = env.look().unwrap().expect("the file that was missing has appeared");
        env.write("login.json", &auth("two"));
        let two = env.look().unwrap().expect("the password has changed");
        assert_ne!(one.logins, two.logins);
        env.write("login.json", "no JSON");
        assert!(env.look().is_err());
        fs::remove_file(env.path("login.json")).unwrap();
        assert!(env.look().is_err(), "it is another error now");
        assert_eq!(env.look(), Ok(None));
        env.write("crisp.toml", "");
        assert_eq!(env.look().unwrap(), Some(Registries::default()));
    }

    #[test]
    fn a_mode_that_changed_is_a_change() {
        let env = TestEnv::new("");
        env.write("crisp.toml", &env.login());
        env.write("login.json", "{\"auths\": {}}");
        assert_eq!(env.look(), Ok(None));
        fs::set_permissions(env.path("login.json"), fs::Permissions::from_mode(0o644)).unwrap();
        let said = env.look().unwrap_err();
        assert!(said.contains("0644"), "{said}");
    }
}
