//! The options of an OCI mount, read once.

use std::io;
use std::os::fd::OwnedFd;

use sys::mount::{
    ATIME, Attributes, NOATIME, NODEV, NODIRATIME, NOEXEC, NOSUID, PRIVATE, RDONLY, RELATIME, Reach, SHARED, SLAVE,
    STRICTATIME, set_attributes,
};

/// An option that crisp does not know. It is refused, since ignoring it could allow what it
/// forbids.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown mount option {0:?} in the container's config.json")]
pub struct UnknownOption(String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Flags of the mount itself.
    pub(crate) top: Attributes,
    /// Flags of the mount and all mounts below it.
    pub(crate) tree: Attributes,
    /// Whether the mounts below the source are mounted too.
    pub(crate) reach: Reach,
    /// Options for the file system.
    pub(crate) data: Vec<(String, Option<String>)>,
}

impl MountOptions {
    pub(crate) fn read(options: &[String], file_system: bool) -> Result<Self, UnknownOption> {
        let mut read =
            Self { top: Attributes::default(), tree: Attributes::default(), reach: Reach::Top, data: Vec::new() };
        for option in options {
            match option.as_str() {
                "rbind" => read.reach = Reach::Tree,
                "bind" | "rw" | "defaults" | "suid" | "dev" | "exec" => {}
                "ro" => read.top.set |= RDONLY,
                "rro" => {
                    read.top.set |= RDONLY;
                    read.tree.set |= RDONLY;
                }
                "private" => read.top.propagation = PRIVATE,
                "rprivate" => read.tree.propagation = PRIVATE,
                "slave" => read.top.propagation = SLAVE,
                "rslave" => read.tree.propagation = SLAVE,
                "shared" => read.top.propagation = SHARED,
                "rshared" => read.tree.propagation = SHARED,
                word if restrict(&mut read.top, word) => {}
                word if word.strip_prefix('r').is_some_and(|word| restrict(&mut read.tree, word)) => {}
                other if file_system => {
                    let (key, value) = other.split_once('=').map_or((other, None), |(k, v)| (k, Some(v.to_owned())));
                    read.data.push((key.to_owned(), value));
                }
                other => return Err(UnknownOption(other.to_owned())),
            }
        }
        Ok(read)
    }

    /// Adds the SELinux label of the container's files, unless the options have one.
    pub(crate) fn labelled(mut self, label: Option<&str>) -> Self {
        if let Some(label) = label
            && !self.data.iter().any(|(key, _)| key == "context")
        {
            self.data.push(("context".to_owned(), Some(label.to_owned())));
        }
        self
    }

    /// Changes the attributes of `mount`, and of the mounts below it.
    pub(crate) fn apply(&self, mount: &OwnedFd) -> io::Result<()> {
        for (attributes, reach) in [(self.tree, Reach::Tree), (self.top, Reach::Top)] {
            if attributes != Attributes::default() {
                set_attributes(mount, attributes, reach)?;
            }
        }
        Ok(())
    }

    /// Returns the requested propagation, from either form.
    pub(crate) fn propagation(&self) -> u64 {
        self.tree.propagation | self.top.propagation
    }
}

/// Adds an attribute for the mount alone, or with the prefix `r` for all mounts below it too.
fn restrict(attributes: &mut Attributes, word: &str) -> bool {
    let (set, clear) = match word {
        "nosuid" => (NOSUID, 0),
        "nodev" => (NODEV, 0),
        "noexec" => (NOEXEC, 0),
        "nodiratime" => (NODIRATIME, 0),
        "noatime" => (NOATIME, ATIME),
        "relatime" => (RELATIME, ATIME),
        "strictatime" => (STRICTATIME, ATIME),
        _ => return false,
    };
    attributes.set |= set;
    attributes.clear |= clear;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str], file_system: bool) -> Result<MountOptions, UnknownOption> {
        MountOptions::read(&options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>(), file_system)
    }

    #[test]
    fn options_become_recursive_or_plain_attributes() {
        let options = read(&["rbind", "ro", "nosuid", "rslave"], false).unwrap();
        assert_eq!(options.top, Attributes { set: RDONLY | NOSUID, ..Attributes::default() });
        assert_eq!(options.tree, Attributes { propagation: SLAVE, ..Attributes::default() });
        assert_eq!(options.reach, Reach::Tree);
        assert_eq!(read(&["rro"], false).unwrap().tree.set, RDONLY);
    }

    #[test]
    fn restricting_options_apply_to_the_mount_or_the_tree() {
        let options = read(&["rbind", "noexec", "rnodev", "rnosuid", "rnodiratime"], false).unwrap();
        assert_eq!(options.top, Attributes { set: NOEXEC, ..Attributes::default() });
        assert_eq!(options.tree, Attributes { set: NODEV | NOSUID | NODIRATIME, ..Attributes::default() });
        for (word, set) in [("noatime", NOATIME), ("relatime", RELATIME), ("strictatime", STRICTATIME)] {
            let wanted = Attributes { set, clear: ATIME, propagation: 0 };
            assert_eq!(read(&[word], false).unwrap().top, wanted);
            assert_eq!(read(&[&format!("r{word}")], false).unwrap().tree, wanted);
        }
        assert_eq!(read(&["rexec"], false), Err(UnknownOption("rexec".into())));
    }

    #[test]
    fn an_unknown_option_is_refused_except_for_file_systems() {
        assert_eq!(read(&["mode=755"], false), Err(UnknownOption("mode=755".into())));
        assert_eq!(read(&["mode=755"], true).unwrap().data, [("mode".to_owned(), Some("755".to_owned()))]);
    }
}
