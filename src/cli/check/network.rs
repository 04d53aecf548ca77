//! Checks CNI and the built-in bridge; the bridge is tried in temporary network namespaces.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use config::{CniConfig, NetworkConfig, NetworkMode};
use model::error_chain::chain;
use net::bridge::Bridge;
use net::cni::{self, Cni};
use nix::sched::{CloneFlags, unshare};

use super::finding::Finding;

const TOPIC: &str = "network";
const NAMESPACE: &str = "/proc/thread-self/ns/net";

pub(super) async fn check(config: &NetworkConfig) -> Vec<Finding> {
    let CniConfig { conf_dir, bin_dirs, timeout, template } = config.cni.clone();
    // The check attaches no pod by CNI, so it does not use the cache.
    let cache_dir = PathBuf::from("/nonexistent");
    let cni = Cni::new(cni::Settings { conf_dir: conf_dir.clone(), bin_dirs, cache_dir, timeout, template });
    let by_cni = match config.mode {
        NetworkMode::None => {
            let what = "network.mode is \"none\": pods have a loopback interface only";
            return vec![Finding::warn(TOPIC, "mode", what, "set mode = \"auto\" under [network]")];
        }
        NetworkMode::Cni => true,
        NetworkMode::Bridge => false,
        NetworkMode::Auto => cni.configured(),
    };
    let mut found = Vec::new();
    if by_cni {
        found.push(match cni.status().await {
            Ok(cni::Ready { network, file, skipped }) => {
                let skipped: String = skipped.iter().map(|bad| format!("; {bad}")).collect();
                Finding::ok(TOPIC, "CNI", format!("pods use network {network} of {}{skipped}", file.display()))
            }
            Err(error) => {
                let hint = format!(
                    "add a valid network to {} and install its plugins, or set mode = \"bridge\" under [network]",
                    conf_dir.display()
                );
                Finding::missing(TOPIC, "CNI", chain(&error), hint).essential()
            }
        });
    } else {
        let what = format!("no network in {}: pods use the built-in bridge", conf_dir.display());
        found.push(Finding::ok(TOPIC, "CNI", what));
    }
    found.push(bridge(config, !by_cni).await);
    found
}

/// Creates the bridge and attaches a pod to it, in temporary network namespaces of a separate thread.
async fn bridge(config: &NetworkConfig, wanted: bool) -> Finding {
    let settings = config.bridge.clone();
    let tried = std::thread::spawn(move || connect(settings));
    let tried = tokio::task::spawn_blocking(move || tried.join()).await;
    let problem = match tried {
        Ok(Ok(Ok(warnings))) if warnings.is_empty() => None,
        Ok(Ok(Ok(warnings))) => Some((false, warnings.join("; "))),
        Ok(Ok(Err(problem))) => Some((true, problem)),
        Ok(Err(_)) | Err(_) => Some((true, "internal error: the test panicked".to_owned())),
    };
    let hint = "load the kernel modules: modprobe -a bridge veth nf_tables nft_chain_nat nft_masq";
    match problem {
        None => Finding::ok(TOPIC, "built-in bridge", "works: bridge, veth and nftables (tested)"),
        Some((false, warnings)) => Finding::warn(TOPIC, "built-in bridge", format!("works, but {warnings}"), hint),
        Some((true, problem)) => {
            let lacking = Finding::missing(TOPIC, "built-in bridge", format!("does not work: {problem}"), hint);
            if wanted { lacking.essential() } else { lacking }
        }
    }
}

/// Runs the test; the kernel removes both namespaces when the thread exits and the file is closed.
fn connect(settings: net::bridge::Settings) -> Result<Vec<String>, String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("creating a network namespace: {error}"))?;
    let inside = File::open(NAMESPACE).map_err(|error| format!("opening {NAMESPACE}: {error}"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("creating a network namespace: {error}"))?;
    let bridge = Bridge::open(settings).map_err(|error| chain(&error))?;
    let mut warnings = bridge.set_up().map_err(|error| chain(&error))?;
    let id = "check".to_owned();
    let ips = bridge.reserve(&id).map_err(|error| chain(&error))?;
    let netns = PathBuf::from(format!("/proc/self/fd/{}", inside.as_raw_fd()));
    let pod = net::Pod { id, netns: Some(netns), ..net::Pod::default() };
    let attached = bridge.attach(&pod, &ips).map_err(|error| chain(&error))?;
    warnings.extend(attached.warnings);
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn the_bridge_test_leaves_no_links_on_the_host() {
        let links = || std::fs::read_to_string("/proc/net/dev").unwrap();
        let names = |text: &str| {
            text.lines().filter_map(|l| l.split_once(':').map(|(n, _)| n.trim().to_owned())).collect::<Vec<_>>()
        };
        let settings = net::bridge::Settings { bridge: "chk9".to_owned(), ..net::bridge::Settings::default() };
        let tried = std::thread::spawn(move || connect(settings)).join().unwrap();
        assert!(tried.is_ok(), "{tried:?}");
        assert!(!names(&links()).iter().any(|name| name.starts_with("chk9")));
    }
}
