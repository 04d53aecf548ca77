//! What went through the interfaces of pods.

use std::path::Path;
use std::time::SystemTime;
use std::{fs, io};

use model::stats::{InterfaceUsage, NetworkUsage};

/// What every network plugin calls the interface of a pod.
const DEFAULT: &str = "eth0";
const LOOPBACK: &str = "lo";

/// The usage of each of the network namespaces at `paths`; none where there is nothing but loopback.
pub(super) fn read(paths: &[&Path]) -> io::Result<Vec<io::Result<Option<NetworkUsage>>>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    sys::netns::run_in(paths, || {
        let at = SystemTime::now();
        Ok(usage(at, interfaces(&fs::read("/proc/thread-self/net/dev")?)))
    })
}

/// The interfaces in `/proc/net/dev`, loopback aside. Lines that are none, such as the titles, are passed over. Who may name
/// interfaces need not use letters for it.
fn interfaces(bytes: &[u8]) -> Vec<InterfaceUsage> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter_map(interface).filter(|interface| interface.name != LOOPBACK).collect()
}

/// `eth0: BYTES PACKETS ERRORS DROPPED` and four more received, then the same sent. No name has a colon or a blank in it.
fn interface(line: &str) -> Option<InterfaceUsage> {
    let (name, counters) = line.split_once(':')?;
    let counters: Option<Vec<u64>> = counters.split_whitespace().map(|counter| counter.parse().ok()).collect();
    match counters?[..] {
        [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] => {
            Some(InterfaceUsage {
                name: name.trim().to_owned(),
                rx_bytes,
                rx_packets,
                rx_errors,
                rx_dropped,
                tx_bytes,
                tx_packets,
                tx_errors,
                tx_dropped,
            })
        }
        _ => None,
    }
}

/// `eth0` first, else whichever came first. Without any there is no usage: the kubelet takes it that one has a default.
fn usage(at: SystemTime, mut interfaces: Vec<InterfaceUsage>) -> Option<NetworkUsage> {
    let default = interfaces.iter().position(|interface| interface.name == DEFAULT).unwrap_or(0);
    if interfaces.is_empty() {
        return None;
    }
    let default = interfaces.remove(default);
    Some(NetworkUsage { at, default, others: interfaces })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
";
    const LO: &str = "    lo: 88903498    5811    0    0    0     0          0         0 88903498    5811    0    0    0     0       0          0\n";
    const IFB: &str = "  ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n";
    const ETH: &str = "  eth0: 240612071    8922    3    1    0     0          0         0   490128    6150    4    2    0     0       0          0\n";

    fn told(lines: &[&str]) -> Option<NetworkUsage> {
        usage(SystemTime::UNIX_EPOCH, interfaces(format!("{TITLES}{}", lines.concat()).as_bytes()))
    }

    #[test]
    fn the_default_interface_stands_apart_from_the_others() {
        let network = told(&[LO, IFB, ETH]).unwrap();
        let eth = InterfaceUsage {
            name: "eth0".into(),
            rx_bytes: 240_612_071,
            rx_packets: 8922,
            rx_errors: 3,
            rx_dropped: 1,
            tx_bytes: 490_128,
            tx_packets: 6150,
            tx_errors: 4,
            tx_dropped: 2,
        };
        assert_eq!(network.default, eth);
        assert_eq!(network.others.iter().map(|other| other.name.as_str()).collect::<Vec<_>>(), ["ifb0"]);
        assert_eq!(told(&[LO, IFB]).unwrap().default.name, "ifb0", "without eth0, the first");
    }

    #[test]
    fn an_interface_whose_name_is_no_text_hides_nothing() {
        let found = interfaces(&[ETH.as_bytes(), b" \xff0: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n"].concat());
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.tx_bytes)).collect();
        assert_eq!(found, [("eth0", 490_128), ("\u{fffd}0", 2)]);
    }

    #[test]
    fn loopback_alone_is_no_network() {
        assert_eq!(told(&[LO]), None);
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        let short = "  eth1: 1 2 3\n";
        let words = "  eth2: many 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let longer = "eth3:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let network = told(&[short, words, longer, "\n", "nonsense"]).unwrap();
        assert_eq!((network.default.name.as_str(), network.default.rx_bytes, network.others.len()), ("eth3", 1, 0));
        assert_eq!((network.default.rx_errors, network.default.tx_bytes, network.default.tx_errors), (3, 9, 11));
    }
}
