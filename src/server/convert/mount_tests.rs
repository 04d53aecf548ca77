use model::{Classed as _, Kind};

use super::super::fixture::{host_mount, image, image_mount};
use super::*;

fn convert(asked: v1::Mount) -> Result<Mount, Refusal> {
    mount(Field::top("config.mounts").entry(0), asked, &mut Warnings::new())
}

fn refused(change: impl FnOnce(&mut v1::Mount)) -> Refusal {
    let mut asked = host_mount();
    change(&mut asked);
    convert(asked).unwrap_err()
}

#[test]
fn what_is_asked_is_shown() {
    for asked in [host_mount(), image_mount()] {
        assert_eq!(mount_to_wire(&convert(asked.clone()).unwrap(), &BTreeMap::new()), asked);
    }
}

#[test]
fn mounts_that_cannot_be_are_refused_by_field() {
    let cases = [
        ("container_path: empty", refused(|m| m.container_path.clear())),
        ("container_path: \"data\" is no absolute path", refused(|m| m.container_path = "data".into())),
        ("host_path: empty", refused(|m| m.host_path.clear())),
        ("host_path: \"data\" is no absolute path", refused(|m| m.host_path = "data".into())),
        ("host_path: set together with image", refused(|m| m.image = Some(image()))),
        ("image_sub_path: set without image", refused(|m| m.image_sub_path = "x".into())),
        ("propagation: 9 is no known value", refused(|m| m.propagation = 9)),
        ("recursive_read_only: needs readonly and private propagation", refused(|m| m.readonly = false)),
        ("recursive_read_only: needs readonly and private propagation", refused(|m| m.propagation = 1)),
        ("mount_options[0]: \"a,b\" is no mount option", refused(|m| m.mount_options = vec!["a,b".into()])),
    ];
    for (problem, said) in cases {
        assert_eq!(said.kind(), Kind::Invalid);
        assert_eq!(said.to_string(), format!("config.mounts[0].{problem}"));
    }
}

#[test]
fn an_image_mount_stays_in_its_image() {
    for bad in ["/etc", "../x", "a/../../b"] {
        let asked = v1::Mount { image_sub_path: bad.into(), ..image_mount() };
        assert!(convert(asked).unwrap_err().to_string().contains("does not stay in the image"), "{bad}");
    }
}

#[test]
fn the_image_that_was_mounted_is_told() {
    let mounted = BTreeMap::from([(image().image, "sha256:used".to_owned())]);
    let shown = mount_to_wire(&convert(image_mount()).unwrap(), &mounted).image.unwrap();
    assert_eq!(shown, v1::ImageSpec { image_ref: "sha256:used".into(), ..image() });
}

#[test]
fn an_image_is_mounted_read_only_and_no_mount_crosses_into_it() {
    let writable = convert(v1::Mount { readonly: false, ..image_mount() }).unwrap_err();
    assert_eq!(writable.to_string(), "config.mounts[0].readonly: an image is mounted read-only");
    for propagation in [1, 2] {
        let crossing = convert(v1::Mount { propagation, ..image_mount() }).unwrap_err();
        assert!(crossing.to_string().starts_with("config.mounts[0].propagation: no mount crosses"), "{crossing}");
    }
    assert!(convert(v1::Mount { recursive_read_only: true, ..image_mount() }).unwrap().recursive_read_only);
}

#[test]
fn idmapped_mounts_are_not_supported_yet() {
    let refusal = refused(|m| m.uid_mappings = vec![v1::IdMapping::default()]);
    assert_eq!(refusal.kind(), Kind::Unsupported);
    let refusal = refused(|m| m.gid_mappings = vec![v1::IdMapping::default()]);
    assert!(refusal.to_string().starts_with("config.mounts[0].gidMappings:"), "{refusal}");
}
