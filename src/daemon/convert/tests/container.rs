use model::{Capabilities, Device, ErrorClass as _, ErrorKind, IdMapping, Mount, MountSource, Propagation, Signal};

use super::super::tests::support::{container_config, create_request, map};
use super::*;

fn refused(change: impl FnOnce(&mut v1::ContainerConfig)) -> InvalidField {
    let mut request = create_request();
    change(request.config.as_mut().unwrap());
    create(request).unwrap_err()
}

#[test]
fn every_field_is_converted() {
    let Create { pod, spec, repeated, warnings } = create(create_request()).unwrap();
    assert_eq!(pod, "abc");
    assert_eq!(repeated.unwrap().meta.name, "web");
    assert_eq!(spec.meta, ContainerMeta { name: "main".into(), attempt: 2 });
    assert_eq!((spec.image.image.as_str(), spec.image.user_specified.as_str()), ("sha256:abc", "busybox"));
    assert_eq!((spec.image.annotations, spec.image.handler.as_str()), (map(&[("ik", "iv")]), "crisp"));
    assert_eq!((spec.command, spec.args), (vec!["/bin/app".to_owned()], vec!["-v".to_owned()]));
    assert_eq!(spec.working_dir, "/work");
    assert_eq!(spec.envs, [("KEY".to_owned(), "value=1".to_owned())]);
    assert_eq!(spec.mounts.len(), 2);
    assert_eq!(
        spec.mounts[0],
        Mount {
            container_path: "/data".into(),
            source: MountSource::Host("/srv/data".into()),
            readonly: true,
            recursive_read_only: true,
            selinux_relabel: true,
            propagation: Propagation::Private,
            uid_mappings: vec![IdMapping { host: 65536, container: 0, length: 1000 }],
            gid_mappings: vec![
                IdMapping { host: 131_072, container: 0, length: 1000 },
                IdMapping { host: 90000, container: 1000, length: 1 },
            ],
            options: vec!["noexec".into()],
        }
    );
    assert_eq!(
        spec.devices,
        [Device { container_path: "/dev/fuse".into(), host_path: "/dev/host-fuse".into(), permissions: "mrw".into() }]
    );
    assert_eq!(spec.cdi_devices, ["vendor.example/gpu=0"]);
    assert_eq!((spec.labels, spec.annotations), (map(&[("lk", "lv")]), map(&[("ak", "av")])));
    assert_eq!(spec.log_path, Some("main/0.log".into()));
    assert!(spec.stdin && spec.stdin_once && spec.tty);
    assert_eq!(spec.resources.oom_score_adj.unwrap().get(), -997);
    assert_eq!(
        spec.security.capabilities,
        Capabilities {
            add: vec!["NET_ADMIN".into(), "SYS_TIME".into()],
            drop: vec!["ALL".into()],
            add_ambient: vec!["NET_RAW".into()]
        }
    );
    assert_eq!(spec.stop_signal, Some(Signal::try_from(37).unwrap()));
    let stated = spec.kubernetes_resources.unwrap();
    assert_eq!((stated.requests["cpu"].as_str(), stated.limits["memory"].as_str()), ("500m", "100000001"));
    assert_eq!((stated.requests.len(), stated.limits.len()), (2, 3));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_container_requires_only_a_name_and_an_image() {
    let v1::ContainerConfig { metadata, image, .. } = container_config();
    let config = v1::ContainerConfig { metadata, image, ..Default::default() };
    let request = v1::CreateContainerRequest { pod_sandbox_id: "p".into(), config: Some(config), sandbox_config: None };
    let Create { spec, repeated, warnings, .. } = create(request).unwrap();
    assert_eq!((spec.log_path, spec.stop_signal, repeated), (None, None, None));
    assert_eq!((spec.resources, spec.kubernetes_resources), (model::resources::LimitsPatch::default(), None));
    assert_eq!((spec.security.run_as, spec.security.seccomp), (None, None));
    assert!(warnings.is_empty());
}

#[test]
fn a_missing_field_is_named() {
    let request = v1::CreateContainerRequest { pod_sandbox_id: String::new(), ..create_request() };
    assert_eq!(create(request).unwrap_err().to_string(), "pod_sandbox_id: empty");
    let request = v1::CreateContainerRequest { config: None, ..create_request() };
    assert_eq!(create(request).unwrap_err().to_string(), "config: missing");
    let cases = [
        ("config.metadata: missing", refused(|c| c.metadata = None)),
        ("config.metadata.name: empty", refused(|c| c.metadata.as_mut().unwrap().name.clear())),
        ("config.image: missing", refused(|c| c.image = None)),
        ("config.image.image: empty", refused(|c| c.image.as_mut().unwrap().image.clear())),
    ];
    for (expected, said) in cases {
        assert_eq!(said.to_string(), expected);
    }
}

#[test]
fn invalid_values_are_refused_by_field() {
    let cases = [
        ("config.windows:", refused(|c| c.windows = Some(v1::WindowsContainerConfig::default()))),
        ("config.command[0]:", refused(|c| c.command = vec!["a\0b".into()])),
        ("config.args[0]:", refused(|c| c.args = vec!["\0".into()])),
        ("config.working_dir:", refused(|c| c.working_dir = "here".into())),
        ("config.envs[0].key:", refused(|c| c.envs[0].key = "A=B".into())),
        ("config.envs[0].key:", refused(|c| c.envs[0].key.clear())),
        ("config.envs[0].value:", refused(|c| c.envs[0].value = vec![0])),
        ("config.devices[0].permissions:", refused(|c| c.devices[0].permissions = "rx".into())),
        ("config.devices[0].permissions:", refused(|c| c.devices[0].permissions.clear())),
        ("config.devices[0].host_path:", refused(|c| c.devices[0].host_path = "null".into())),
        ("config.devices[0].container_path:", refused(|c| c.devices[0].container_path.clear())),
        ("config.CDI_devices[0].name:", refused(|c| c.cdi_devices[0].name.clear())),
        ("config.log_path:", refused(|c| c.log_path = "/var/log/x".into())),
        ("config.log_path:", refused(|c| c.log_path = "a/../../x".into())),
        ("config.log_path:", refused(|c| c.log_path = "a/".into())),
        ("config.stop_signal:", refused(|c| c.stop_signal = 99)),
        (
            "config.linux.resources.cpu_period:",
            refused(|c| c.linux.as_mut().unwrap().resources.as_mut().unwrap().cpu_period = 5),
        ),
    ];
    for (field, said) in cases {
        assert_eq!(said.kind(), ErrorKind::Invalid);
        assert!(said.to_string().starts_with(field), "{field} {said}");
    }
    let mut request = create_request();
    request.sandbox_config.as_mut().unwrap().hostname = "a b".into();
    assert!(create(request).unwrap_err().to_string().starts_with("sandbox_config.hostname:"));
}

#[test]
fn a_value_that_is_not_text_is_refused_without_showing_it() {
    let refusal = refused(|c| c.envs[0].value = b"secret\xff".to_vec());
    assert_eq!(refusal.kind(), ErrorKind::Unsupported);
    assert_eq!(refusal.to_string(), "config.envs[0].value: must be UTF-8");
}

#[test]
fn an_image_ref_from_a_client_is_ignored_with_a_warning() {
    let mut request = create_request();
    request.config.as_mut().unwrap().image.as_mut().unwrap().image_ref = "x".into();
    let warnings = create(request).unwrap().warnings;
    assert!(warnings.contains(&"config.image.image_ref: set by runtimes only, ignored".to_owned()), "{warnings:?}");
}

#[test]
fn an_annotation_with_a_reserved_name_is_kept_with_a_warning() {
    let mut request = create_request();
    let forged = map(&[("io.crisp.pod-resources", "{}"), ("io.crisp.container-resources", "{}"), ("io.crisp.x", "y")]);
    request.config.as_mut().unwrap().annotations = forged.clone();
    let Create { spec, warnings, .. } = create(request).unwrap();
    assert_eq!(spec.annotations, forged);
    for name in ["io.crisp.pod-resources", "io.crisp.container-resources"] {
        let said = format!("config.annotations[{name:?}]: not passed to hooks, because crisp reserves the name");
        assert!(warnings.contains(&said), "{warnings:?}");
    }
    assert_eq!(warnings.len(), 2);
}

#[test]
fn the_timeout_of_a_stop_is_in_seconds() {
    let stop_in = |timeout| stop(v1::StopContainerRequest { container_id: "c".into(), timeout });
    assert_eq!(stop_in(0), Ok(("c".into(), Duration::ZERO)));
    assert_eq!(stop_in(30), Ok(("c".into(), Duration::from_secs(30))));
    assert_eq!(stop_in(-1).unwrap_err().to_string(), "timeout: -1 must not be negative");
    let nameless = v1::StopContainerRequest { container_id: String::new(), timeout: 0 };
    assert_eq!(stop(nameless).unwrap_err().to_string(), "container_id: empty");
}

#[test]
fn an_exec_requires_a_command_and_zero_seconds_mean_unlimited() {
    let ask = |cmd: &[&str], timeout| {
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        exec(v1::ExecSyncRequest { container_id: "c".into(), cmd, timeout })
    };
    assert_eq!(
        ask(&["ls", ""], 0),
        Ok(Exec { container: "c".into(), command: vec!["ls".into(), String::new()], timeout: None })
    );
    assert_eq!(ask(&["ls"], 2).unwrap().timeout, Some(Duration::from_secs(2)));
    for cmd in [&[][..], &[""]] {
        assert_eq!(ask(cmd, 0).unwrap_err().to_string(), "cmd: empty");
    }
    assert_eq!(ask(&["ls"], -5).unwrap_err().to_string(), "timeout: -5 must not be negative");
    assert_eq!(ask(&["ls", "\0"], 0).unwrap_err().to_string(), "cmd[1]: contains a zero byte");
}
