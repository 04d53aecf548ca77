use model::{ErrorClass as _, ErrorKind};

use super::super::tests::support::{host_mount, image, image_mount};
use super::*;

fn convert(asked: v1::Mount) -> Result<Mount, InvalidField> {
    mount(FieldPath::top("config.mounts").entry(0), asked, &mut Warnings::new())
}

fn refused(change: impl FnOnce(&mut v1::Mount)) -> InvalidField {
    let mut asked = host_mount();
    change(&mut asked);
    convert(asked).unwrap_err()
}

#[test]
fn a_mount_is_shown_as_requested() {
    for asked in [host_mount(), image_mount()] {
        assert_eq!(mount_to_wire(&convert(asked.clone()).unwrap(), &BTreeMap::new()), asked);
    }
}

#[test]
fn invalid_mounts_are_refused_by_field() {
    let cases = [
        ("container_path: empty", refused(|m| m.container_path.clear())),
        ("container_path: \"data\" is not an absolute path", refused(|m| m.container_path = "data".into())),
        ("host_path: empty", refused(|m| m.host_path.clear())),
        ("host_path: \"data\" is not an absolute path", refused(|m| m.host_path = "data".into())),
        ("host_path: set together with image", refused(|m| m.image = Some(image()))),
        ("propagation: 9 is not a known value", refused(|m| m.propagation = 9)),
        ("recursive_read_only: needs readonly and private propagation", refused(|m| m.readonly = false)),
        ("recursive_read_only: needs readonly and private propagation", refused(|m| m.propagation = 1)),
        (
            "mount_options[1]: \"noatime\" contradicts \"relatime\"",
            refused(|m| m.mount_options = words("relatime noatime")),
        ),
    ];
    for (problem, said) in cases {
        assert_eq!(said.kind(), ErrorKind::Invalid);
        assert_eq!(said.to_string(), format!("config.mounts[0].{problem}"));
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn only_options_that_remove_rights_are_accepted() {
    let convert_options = |options: &str| convert(v1::Mount { mount_options: words(options), ..host_mount() });
    for good in ["noexec nodev nosuid", "noexec noexec", "noatime nodiratime", "strictatime", "relatime relatime"] {
        assert_eq!(convert_options(good).unwrap().options, words(good));
    }
    for bad in
        ["exec", "suid", "dev", "bind", "rbind", "rshared", "remount", "size=1", "noexec,exec", "NOEXEC", "rnoexec", ""]
    {
        let said = convert_options(&format!("nodev {bad}")).unwrap_err().to_string();
        let none = format!(
            "config.mounts[0].mount_options[1]: {bad:?} is not supported: expected one of noexec, nodev, nosuid, "
        );
        assert!(said.starts_with(&none), "{said}");
    }
    for other in ["ro", "rw", "rro"] {
        let said = convert_options(other).unwrap_err().to_string();
        assert!(said.ends_with("must be set by readonly and recursive_read_only"), "{said}");
    }
}

#[test]
fn an_image_mount_stays_in_its_image() {
    for bad in ["/etc", "../x", "a/../../b"] {
        let asked = v1::Mount { image_sub_path: bad.into(), ..image_mount() };
        assert!(convert(asked).unwrap_err().to_string().contains("must not lead out of the image"), "{bad}");
    }
}

#[test]
fn the_sub_path_of_a_volume_is_part_of_its_host_path() {
    let asked = v1::Mount { host_path: "/volume/sub".into(), image_sub_path: "sub".into(), ..host_mount() };
    assert_eq!(convert(asked).unwrap().source, MountSource::Host("/volume/sub".into()));
}

#[test]
fn the_mounted_image_is_reported() {
    let mounted = BTreeMap::from([(image().image, "sha256:used".to_owned())]);
    let shown = mount_to_wire(&convert(image_mount()).unwrap(), &mounted).image.unwrap();
    assert_eq!(shown, v1::ImageSpec { image_ref: "sha256:used".into(), ..image() });
}

#[test]
fn an_image_is_mounted_read_only_and_no_mount_crosses_into_it() {
    let writable = convert(v1::Mount { readonly: false, ..image_mount() }).unwrap_err();
    assert_eq!(writable.to_string(), "config.mounts[0].readonly: must be true: images are mounted read-only");
    for propagation in [1, 2] {
        let crossing = convert(v1::Mount { propagation, ..image_mount() }).unwrap_err();
        assert!(crossing.to_string().starts_with("config.mounts[0].propagation: must be private"), "{crossing}");
    }
    assert!(convert(v1::Mount { recursive_read_only: true, ..image_mount() }).unwrap().recursive_read_only);
}

#[test]
fn invalid_mappings_are_refused_by_field() {
    let cases = [
        ("gidMappings: empty, but uidMappings is not", refused(|m| m.gid_mappings.clear())),
        ("uidMappings: empty, but gidMappings is not", refused(|m| m.uid_mappings.clear())),
        ("uidMappings[0].length: 0", refused(|m| m.uid_mappings[0].length = 0)),
        ("gidMappings[1].container_id: overlaps with entry 0", refused(|m| m.gid_mappings[1].container_id = 999)),
    ];
    for (problem, said) in cases {
        assert_eq!(said.kind(), ErrorKind::Invalid);
        assert_eq!(said.to_string(), format!("config.mounts[0].{problem}"));
    }
}
