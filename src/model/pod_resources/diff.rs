//! Compares a container with its declaration, field by field.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Debug};

use super::{ContainerResourceConfig, ResourceList, Resources};
use crate::container::{ContainerSpec, Device, ImageName, Mount, MountSource};

/// One field in which a container differs from its declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The object, and the part of it that differs: `mount "/data", readonly`.
    pub object: String,
    /// The value in the container's request.
    pub asked: String,
    pub announced: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, asked, announced } = self;
        write!(f, "{object}: {asked}, but {announced} was declared")
    }
}

impl Difference {
    /// Returns the difference of a container without a declaration.
    pub fn undeclared_container(container: &ContainerSpec) -> Self {
        Self {
            object: "name".to_owned(),
            asked: format!("{:?}", container.meta.name),
            announced: "no such container".to_owned(),
        }
    }
}

impl ContainerResourceConfig {
    /// Returns the differences of `asked`; empty if it is as declared.
    ///
    /// Amounts are compared by value, and lists by path or name, ignoring their order.
    pub fn differences(&self, asked: &ContainerSpec) -> Vec<Difference> {
        let Self { name: _, kind: _, resources, mounts, devices, cdi_devices } = self;
        let mut found = Found(Vec::new());
        let none = Resources::default();
        let (asked_resources, announced) = (asked.kubernetes_resources.as_ref(), resources.as_ref());
        let (asked_resources, announced) = (asked_resources.unwrap_or(&none), announced.unwrap_or(&none));
        found.amounts("request", &asked_resources.requests, &announced.requests);
        found.amounts("limit", &asked_resources.limits, &announced.limits);
        for (path, pair) in paired(&asked.mounts, mounts, |mount| mount.container_path.as_str()) {
            let object = format!("mount {path:?}");
            match pair {
                Pair::Both(asked, announced) => found.mount(&object, asked, announced),
                Pair::Asked(mount) => found.note(object, Some(source_text(&mount.source)), None),
                Pair::Announced(mount) => found.note(object, None, Some(source_text(&mount.source))),
            }
        }
        for (path, pair) in paired(&asked.devices, devices, |device| device.container_path.as_str()) {
            let object = format!("device {path:?}");
            match pair {
                Pair::Both(asked, announced) => found.device(&object, asked, announced),
                Pair::Asked(device) => found.note(object, Some(format!("{:?}", device.host_path)), None),
                Pair::Announced(device) => found.note(object, None, Some(format!("{:?}", device.host_path))),
            }
        }
        for (name, pair) in paired(&asked.cdi_devices, cdi_devices, String::as_str) {
            let text = format!("{name:?}");
            match pair {
                Pair::Both(_, _) => {}
                Pair::Asked(_) => found.note("CDI device".to_owned(), Some(text), None),
                Pair::Announced(_) => found.note("CDI device".to_owned(), None, Some(text)),
            }
        }
        found.0
    }
}

struct Found(Vec<Difference>);

impl Found {
    fn note(&mut self, object: String, asked: Option<String>, announced: Option<String>) {
        let (missing, none) = ("missing".to_owned(), "none".to_owned());
        let (asked, announced) = (asked.unwrap_or(missing), announced.unwrap_or(none));
        self.0.push(Difference { object, asked, announced });
    }

    fn compare<T: PartialEq + Debug>(&mut self, object: &str, part: &str, asked: &T, announced: &T) {
        if asked != announced {
            self.note(format!("{object}, {part}"), Some(format!("{asked:?}")), Some(format!("{announced:?}")));
        }
    }

    fn amounts(&mut self, kind: &str, asked: &ResourceList, announced: &ResourceList) {
        let names: BTreeSet<_> = asked.keys().chain(announced.keys()).collect();
        for name in names {
            let (asked, announced) = (asked.get(name), announced.get(name));
            if asked != announced {
                let object = format!("{kind} of {name}");
                self.note(object, asked.map(ToString::to_string), announced.map(ToString::to_string));
            }
        }
    }

    fn mount(&mut self, object: &str, asked: &Mount, announced: &Mount) {
        let Mount {
            container_path: _,
            source,
            readonly,
            recursive_read_only,
            selinux_relabel,
            propagation,
            uid_mappings,
            gid_mappings,
            options,
        } = asked;
        self.source(object, source, &announced.source);
        self.compare(object, "readonly", readonly, &announced.readonly);
        self.compare(object, "recursively readonly", recursive_read_only, &announced.recursive_read_only);
        self.compare(object, "SELinux relabelling", selinux_relabel, &announced.selinux_relabel);
        self.compare(object, "propagation", propagation, &announced.propagation);
        self.compare(object, "UID mappings", uid_mappings, &announced.uid_mappings);
        self.compare(object, "GID mappings", gid_mappings, &announced.gid_mappings);
        self.compare(object, "options", options, &announced.options);
    }

    fn source(&mut self, object: &str, asked: &MountSource, announced: &MountSource) {
        match (asked, announced) {
            (MountSource::Host(asked), MountSource::Host(announced)) => {
                self.compare(object, "host path", asked, announced);
            }
            (
                MountSource::Image { image: asked_image, sub_path: asked_sub },
                MountSource::Image { image: announced_image, sub_path: announced_sub },
            ) => {
                if !is_same_image(asked_image, announced_image) {
                    self.compare(object, "image", &asked_image.image, &announced_image.image);
                }
                self.compare(object, "path in the image", asked_sub, announced_sub);
            }
            (MountSource::Host(_), MountSource::Image { .. }) | (MountSource::Image { .. }, MountSource::Host(_)) => {
                self.note(object.to_owned(), Some(source_text(asked)), Some(source_text(announced)));
            }
        }
    }

    fn device(&mut self, object: &str, asked: &Device, announced: &Device) {
        let Device { container_path: _, host_path, permissions } = asked;
        self.compare(object, "host path", host_path, &announced.host_path);
        let rights = |text: &str| text.chars().collect::<BTreeSet<_>>();
        if rights(permissions) != rights(&announced.permissions) {
            self.compare(object, "permissions", permissions, &announced.permissions);
        }
    }
}

/// Returns whether both name one image: an image declared by name may be requested by its id later.
fn is_same_image(asked: &ImageName, announced: &ImageName) -> bool {
    asked.image == announced.image || asked.user_specified == announced.image
}

fn source_text(source: &MountSource) -> String {
    match source {
        MountSource::Host(path) => format!("{path:?}"),
        MountSource::Image { image, sub_path: _ } => format!("image {:?}", image.image),
    }
}

enum Pair<'a, T> {
    Both(&'a T, &'a T),
    Asked(&'a T),
    Announced(&'a T),
}

/// Pairs items with the same key; items with a repeated key are paired in order.
fn paired<'a, T>(asked: &'a [T], announced: &'a [T], key: impl Fn(&'a T) -> &'a str) -> Vec<(&'a str, Pair<'a, T>)> {
    let mut left: BTreeMap<&str, VecDeque<&T>> = BTreeMap::new();
    for one in asked {
        left.entry(key(one)).or_default().push_back(one);
    }
    let mut pairs = Vec::new();
    for announced in announced {
        let name = key(announced);
        pairs.push(match left.get_mut(name).and_then(VecDeque::pop_front) {
            Some(asked) => (name, Pair::Both(asked, announced)),
            None => (name, Pair::Announced(announced)),
        });
    }
    pairs.extend(left.into_iter().flat_map(|(name, rest)| rest.into_iter().map(move |one| (name, Pair::Asked(one)))));
    pairs
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
