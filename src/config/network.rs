//! Settings of pod networking: the choice of CNI or bridge, and the settings of both.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use net::bridge;
use net::bridge::{Bridge, SettingsError};

use super::file::{RawBridge, RawCni, RawNetwork};
use super::resolve::{InvalidSetting, absolute, invalid};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    pub mode: NetworkMode,
    pub cni: CniConfig,
    pub bridge: bridge::Settings,
}

/// The provider of pod networking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// CNI if a network is configured, else crisp's built-in bridge.
    Auto,
    Cni,
    Bridge,
    /// Pods have only a loopback interface.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniConfig {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
    pub timeout: Duration,
    pub template: Option<PathBuf>,
}

/// In seconds, the time that the kubelet waits for RunPodSandbox.
const TIMEOUT_MAX: u64 = 240;

pub(super) fn resolve(RawNetwork { mode, cni, bridge }: RawNetwork) -> Result<NetworkConfig, InvalidSetting> {
    let mode = match mode.as_str() {
        "auto" => NetworkMode::Auto,
        "cni" => NetworkMode::Cni,
        "bridge" => NetworkMode::Bridge,
        "none" => NetworkMode::None,
        other => {
            let problem = format_args!("must be \"auto\", \"cni\", \"bridge\" or \"none\", got {other:?}");
            return Err(invalid("network.mode", problem));
        }
    };
    Ok(NetworkConfig { mode, cni: cni_config(cni)?, bridge: bridge_config(bridge)? })
}

fn cni_config(RawCni { conf_dir, bin_dirs, timeout, template }: RawCni) -> Result<CniConfig, InvalidSetting> {
    if !(1..=TIMEOUT_MAX).contains(&timeout) {
        return Err(invalid("network.cni.timeout", format_args!("must be 1 to {TIMEOUT_MAX}, got {timeout}")));
    }
    let bin_dirs = bin_dirs.into_iter().map(|dir| absolute("network.cni.bin_dirs", dir));
    Ok(CniConfig {
        conf_dir: absolute("network.cni.conf_dir", conf_dir)?,
        bin_dirs: bin_dirs.collect::<Result<_, _>>()?,
        timeout: Duration::from_secs(timeout),
        template: match template.as_os_str().is_empty() {
            true => None,
            false => Some(absolute("network.cni.template", template)?),
        },
    })
}

fn bridge_config(RawBridge { name, pools, mtu }: RawBridge) -> Result<bridge::Settings, InvalidSetting> {
    let pool = |text: &String| -> Result<IpNet, InvalidSetting> {
        text.parse().map_err(|_| invalid("network.bridge.pools", format_args!("must be ADDRESS/LENGTH, got {text:?}")))
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let settings = bridge::Settings {
        table: name.chars().map(plain).collect(),
        bridge: name,
        pools: pools.iter().map(pool).collect::<Result<_, _>>()?,
        mtu: (mtu != 0).then_some(mtu),
    };
    // Checks the settings without creating anything.
    match Bridge::open(settings.clone()) {
        Ok(_) => Ok(settings),
        Err(SettingsError::Bridge(_) | SettingsError::Table(_)) => {
            let problem = format_args!(
                "invalid bridge name {:?}: expected a letter, then up to five letters, digits or \"-\"",
                settings.bridge
            );
            Err(invalid("network.bridge.name", problem))
        }
        Err(SettingsError::Mtu(mtu)) => {
            Err(invalid("network.bridge.mtu", format_args!("must be 0 or 1280 to 65535, got {mtu}")))
        }
        Err(SettingsError::Pools(problem)) => Err(invalid("network.bridge.pools", problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut RawNetwork)) -> String {
        let mut raw = RawNetwork::default();
        change(&mut raw);
        resolve(raw).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_a_pool_and_the_usual_directories() {
        let config = resolve(RawNetwork::default()).unwrap();
        assert_eq!(config.mode, NetworkMode::Auto);
        assert_eq!(config.bridge.pools, ["10.213.0.0/16".parse().unwrap()]);
        assert_eq!((config.bridge.mtu, config.cni.template), (None, None));
    }

    #[test]
    fn one_pool_of_each_address_family_is_accepted() {
        let mut raw = RawNetwork::default();
        raw.bridge.pools = vec!["fd00:1::/64".into(), "10.0.0.0/24".into()];
        let pools = resolve(raw).unwrap().bridge.pools;
        assert_eq!(pools, ["fd00:1::/64", "10.0.0.0/24"].map(|pool| pool.parse().unwrap()));
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        for pools in [&[][..], &["10.0.0.0/24", "10.1.0.0/24"], &["10.0.0.0"], &["10.0.0.0/31"], &["10.0.0.1/24"]] {
            let error = refused(|raw| raw.bridge.pools = pools.iter().map(|pool| (*pool).to_owned()).collect());
            assert!(error.starts_with("network.bridge.pools: "), "{error}");
        }
        for (name, change) in [
            ("network.mode", (|raw| raw.mode = "vxlan".into()) as fn(&mut RawNetwork)),
            ("network.bridge.name", |raw| raw.bridge.name = "a/b".into()),
            ("network.bridge.name", |raw| raw.bridge.name = "longer-than-six".into()),
            ("network.bridge.mtu", |raw| raw.bridge.mtu = 100),
            ("network.cni.timeout", |raw| raw.cni.timeout = 0),
            ("network.cni.conf_dir", |raw| raw.cni.conf_dir = "net.d".into()),
            ("network.cni.bin_dirs", |raw| raw.cni.bin_dirs.push("../bin".into())),
            ("network.cni.template", |raw| raw.cni.template = "t".into()),
        ] {
            let error = refused(change);
            assert!(error.starts_with(name), "{error}");
        }
    }
}
