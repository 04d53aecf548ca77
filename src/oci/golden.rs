//! Whole `config.json` files of typical pods, compared with the files in `golden/`.
//!
//! `CRISP_UPDATE_GOLDEN=1 cargo test -p oci golden` writes the files; review them with `git diff`.

use std::path::PathBuf;
use std::{env, fs};

use model::{IdMapping, Mount, MountSource, Propagation, UserNs};
use oci_spec::runtime::Spec;

use super::test_support::{built, built_from, built_in, given};
use super::*;

/// Compares `spec` with `golden/NAME.json` and prints each line that differs.
#[track_caller]
fn assert_golden(name: &str, spec: &Spec) {
    // Sorts the keys of maps. Capabilities are sets without an order.
    let mut value = serde_json::to_value(spec).unwrap();
    for set in value["process"]["capabilities"].as_object_mut().unwrap().values_mut() {
        set.as_array_mut().unwrap().sort_by_key(|name| name.as_str().map(str::to_owned));
    }
    let actual = format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.json"));
    if env::var_os("CRISP_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert!(actual == expected, "{} differs:\n{}", path.display(), diff(&expected, &actual));
}

/// Returns the lines between the common start and the common end of both texts.
fn diff(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(old, new)| old == new).count();
    let removed = old[start..old.len() - end].iter().map(|line| format!("{}: -{line}\n", start + 1));
    let added = new[start..new.len() - end].iter().map(|line| format!("{}: +{line}\n", start + 1));
    removed.chain(added).collect()
}

fn volume(path: &str, source: MountSource) -> Mount {
    Mount {
        container_path: path.into(),
        source,
        readonly: false,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation: Propagation::Private,
        uid_mappings: vec![],
        gid_mappings: vec![],
        options: vec![],
    }
}

/// A container with each setting that a pod spec may have.
fn with_all_settings() -> ContainerSpec {
    let mut container = given::container();
    let of_image = MountSource::Image { image: container.image.clone(), sub_path: "x".into() };
    container.command = vec!["/bin/server".into()];
    container.args = vec!["--port".into(), "80".into()];
    container.working_dir = "/srv".into();
    container.envs = vec![("A".into(), "container".into()), ("B".into(), "x=y".into())];
    container.tty = true;
    container.mounts = vec![
        volume("/data", MountSource::Host("/src/data".into())),
        volume("/model", of_image),
        volume("/etc/hosts", MountSource::Host("/src/hosts".into())),
    ];
    (container.mounts[0].readonly, container.mounts[0].propagation) = (true, Propagation::HostToContainer);
    container.mounts[0].options = vec!["noexec".into()];
    container.security.capabilities.add = vec!["NET_ADMIN".into()];
    container.security.capabilities.drop = vec!["CHOWN".into()];
    container.security.readonly_rootfs = true;
    container.security.no_new_privs = true;
    container
}

#[test]
fn a_container_without_settings() {
    assert_golden("default", &built(&given::container(), &[]).unwrap());
}

#[test]
fn a_container_with_all_settings() {
    let sources = ["/src/data", "sha256:abc/x", "/src/hosts"].map(PathBuf::from);
    let volumes = [image::Volume { path: "/declared".into(), directory: "/volumes/0".into() }];
    let edits = Edits { env: vec!["A=cdi".into(), "C=1".into()], ..Edits::default() };
    assert_golden("all-settings", &built_from(&given::pod(), &with_all_settings(), &sources, &volumes, edits).unwrap());
}

#[test]
fn a_privileged_container() {
    let (mut pod, mut container) = (given::pod(), given::container());
    pod.security.privileged = true;
    container.security.privileged = true;
    assert_golden("privileged", &built_in(&pod, &container, &[], &[]).unwrap());
}

#[test]
fn a_container_in_a_user_namespace() {
    let mapping = |length| vec![IdMapping { host: 65536, container: 0, length }];
    let ids = UserNs { uids: mapping(2000), gids: mapping(1000) };
    let (mut pod, mut container) = (given::pod(), given::container());
    pod.security.namespaces.user = Some(ids.clone());
    container.security.namespaces.user = Some(ids);
    container.mounts = vec![volume("/data", MountSource::Host("/src".into()))];
    container.mounts[0].uid_mappings = mapping(2000);
    container.mounts[0].gid_mappings = mapping(1000);
    let volumes = [image::Volume { path: "/declared".into(), directory: "/volumes/0".into() }];
    assert_golden("user-namespace", &built_in(&pod, &container, &["/src".into()], &volumes).unwrap());
}

#[test]
fn a_difference_is_shown_with_its_lines() {
    assert_eq!(diff("a\nb\nc\n", "a\nx\ny\nc\n"), "2: -b\n2: +x\n2: +y\n");
}
