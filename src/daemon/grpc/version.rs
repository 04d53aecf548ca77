//! Responses of Version, Status and RuntimeConfig: version, handlers, features and conditions.

use config::{CgroupDriver, Handlers};
use cri_api::v1;

use crate::runtime::Condition;

pub(super) fn version() -> v1::VersionResponse {
    v1::VersionResponse {
        // The version of the kubelet's runtime API, which has never changed.
        version: "0.1.0".to_owned(),
        runtime_name: "crisp".to_owned(),
        runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
        runtime_api_version: "v1".to_owned(),
    }
}

pub(super) fn condition(condition: Condition) -> v1::RuntimeCondition {
    let Condition { name, ok, reason, message } = condition;
    v1::RuntimeCondition { r#type: name.to_owned(), status: ok, reason, message }
}

/// Returns all handlers. They differ in settings, not in features.
pub(super) fn handlers(all: &Handlers, user_namespaces: bool) -> Vec<v1::RuntimeHandler> {
    let features = handler_features(user_namespaces);
    all.names().map(|name| v1::RuntimeHandler { name: name.to_owned(), features: Some(features) }).collect()
}

fn handler_features(user_namespaces: bool) -> v1::RuntimeHandlerFeatures {
    v1::RuntimeHandlerFeatures {
        recursive_read_only_mounts: has_mount_setattr(&rustix::system::uname().release().to_string_lossy()),
        user_namespaces,
    }
}

pub(super) fn features(user_namespaces: bool) -> v1::RuntimeFeatures {
    v1::RuntimeFeatures {
        supplemental_groups_policy: true,
        user_namespaces_host_network: user_namespaces,
        mount_options: true,
    }
}

pub(super) fn runtime_config(driver: CgroupDriver) -> v1::RuntimeConfigResponse {
    let driver = match driver {
        CgroupDriver::Cgroupfs => v1::CgroupDriver::Cgroupfs,
        CgroupDriver::Systemd => v1::CgroupDriver::Systemd,
    };
    v1::RuntimeConfigResponse { linux: Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() }) }
}

/// Returns true for kernels that support recursive read-only mounts: since 5.12.
fn has_mount_setattr(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursive_read_only_mounts_require_kernel_support() {
        for (release, has) in
            [("6.18.5", true), ("5.12.0-rc1", true), ("5.4.0-42-generic", false), ("10", true), ("", false)]
        {
            assert_eq!(has_mount_setattr(release), has, "{release}");
        }
    }

    #[test]
    fn the_version_is_what_the_kubelet_expects() {
        let v1::VersionResponse { version, runtime_name, runtime_version, runtime_api_version } = version();
        assert_eq!((version.as_str(), runtime_name.as_str(), runtime_api_version.as_str()), ("0.1.0", "crisp", "v1"));
        assert!(!runtime_version.is_empty());
    }

    #[test]
    fn the_cgroup_driver_is_reported_explicitly() {
        for (set, said) in
            [(CgroupDriver::Cgroupfs, v1::CgroupDriver::Cgroupfs), (CgroupDriver::Systemd, v1::CgroupDriver::Systemd)]
        {
            assert_eq!(runtime_config(set).linux.unwrap().cgroup_driver(), said);
        }
    }

    #[test]
    fn the_default_handler_is_among_the_handlers() {
        let all = handlers(&config::Handlers::of(&["a"]), true);
        assert_eq!(all.iter().map(|handler| handler.name.as_str()).collect::<Vec<_>>(), ["", "crisp", "a"]);
        assert!(all.iter().all(|handler| handler.features == Some(handler_features(true))));
    }
}
