//! Detects changes in the directory of network configurations, without reading the files.

use std::path::PathBuf;

use safe_fs::FileStamp;

use super::Cni;
use super::conf::dir;

/// The directory, its configurations, and where their plugins are searched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DirStamp {
    conf_dir: PathBuf,
    bin_dirs: Vec<(PathBuf, Option<FileStamp>)>,
    files: Vec<(PathBuf, Option<FileStamp>)>,
}

impl Cni {
    /// Returns the stamps of the configurations and of the directories of plugins. Blocks on file I/O.
    #[must_use]
    pub fn dir_stamp(&self) -> DirStamp {
        let settings = self.settings();
        let stamped = |path: &PathBuf| (path.clone(), FileStamp::read(path));
        DirStamp {
            conf_dir: settings.conf_dir.clone(),
            bin_dirs: settings.bin_dirs.iter().map(stamped).collect(),
            files: dir::configurations(&settings.conf_dir).unwrap_or_default().iter().map(stamped).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::Settings;
    use super::*;

    #[test]
    fn a_new_a_changed_and_a_removed_configuration_change_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let conf_dir = dir.path().join("net.d");
        let cni = Cni::new(Settings {
            conf_dir: conf_dir.clone(),
            bin_dirs: vec![dir.path().join("bin")],
            cache_dir: dir.path().join("cache"),
            timeout: Duration::from_secs(1),
            template: None,
        });
        let mut last = cni.dir_stamp();
        let mut changed = |what: &str| {
            let now = cni.dir_stamp();
            assert_ne!(now, last, "{what}");
            assert_eq!(cni.dir_stamp(), now, "{what}");
            last = now;
        };
        fs::create_dir(&conf_dir).unwrap();
        fs::write(conf_dir.join("10-a.conflist"), "{").unwrap();
        changed("a new file");
        fs::write(conf_dir.join("10-a.conflist"), "{}").unwrap();
        changed("a changed file");
        fs::remove_file(conf_dir.join("10-a.conflist")).unwrap();
        changed("a removed file");
        fs::create_dir(dir.path().join("bin")).unwrap();
        changed("a directory of plugins");
    }
}
