//! Reads the network usage of pods from `/proc/net/dev` in their network namespaces.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::time::SystemTime;

use model::stats::{InterfaceUsage, NetworkUsage};

/// The name that network plugins give to the interface of a pod.
const DEFAULT: &str = "eth0";
const LOOPBACK: &str = "lo";

/// Maximum interfaces beside the default one, per pod and per response. A process in a pod may
/// create tens of thousands, and the kubelet accepts responses up to 16 MiB: the eight metrics of
/// an interface take about 3 KiB.
const OTHERS: usize = 8;
const OTHERS_OF_ALL: usize = 1024;
/// Maximum bytes of a list that are searched for the default interface: about 8,000 lines.
const LIST: u64 = 1 << 20;

/// Returns the usage of each network namespace of `paths`; `None` if it has only loopback.
pub(super) fn read(paths: &[&Path]) -> io::Result<Vec<io::Result<Option<NetworkUsage>>>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let others = OTHERS.min(OTHERS_OF_ALL / paths.len());
    sys::netns::run_in(paths, || {
        let at = SystemTime::now();
        let list = File::open("/proc/thread-self/net/dev")?.take(LIST);
        Ok(usage(at, interfaces(BufReader::new(list), others)?, others))
    })
}

/// Returns the interfaces in `/proc/net/dev` without loopback: the default one and the first
/// others. Reading stops when these are found. Other lines, such as the titles, are skipped.
fn interfaces(mut list: impl BufRead, others: usize) -> io::Result<Vec<InterfaceUsage>> {
    let (mut found, mut names, mut has_default) = (Vec::new(), BTreeSet::new(), false);
    let mut line = Vec::new();
    // One more, because the first replaces a missing default interface.
    while !(has_default && found.len() > others) {
        line.clear();
        list.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            break;
        }
        let Some(interface) = interface(&line).filter(|interface| interface.name != LOOPBACK) else { continue };
        let default = interface.name == DEFAULT;
        // An interface that is renamed meanwhile may have the name of an earlier one.
        if (default || found.len() <= others) && names.insert(interface.name.clone()) {
            has_default |= default;
            found.push(interface);
        }
    }
    Ok(found)
}

/// Parses `eth0: BYTES PACKETS ERRORS DROPPED` and four more received, then the same sent. Names
/// contain no colon and no blank.
fn interface(line: &[u8]) -> Option<InterfaceUsage> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, counters) = (line[..colon].trim_ascii(), std::str::from_utf8(&line[colon + 1..]).ok()?);
    let counters: Option<Vec<u64>> = counters.split_whitespace().map(|counter| counter.parse().ok()).collect();
    match counters?[..] {
        [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] => {
            Some(InterfaceUsage {
                name: escape(name),
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

/// Returns a name as text. A container may use any bytes in names: bytes that are not text, and
/// backslashes, become `\xNN`, so that names stay unique.
fn escape(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(|c: char| c.is_control() || c == '\\') => text.to_owned(),
        _ => {
            let byte = |byte: &u8| match byte {
                b'!'..=b'[' | b']'..=b'~' => char::from(*byte).to_string(),
                other => format!("\\x{other:02x}"),
            };
            name.iter().map(byte).collect()
        }
    }
}

/// Returns `eth0`, else the first interface, as the default one. Without any there is no usage: the
/// kubelet expects a default interface.
fn usage(at: SystemTime, mut interfaces: Vec<InterfaceUsage>, others: usize) -> Option<NetworkUsage> {
    let default = interfaces.iter().position(|interface| interface.name == DEFAULT).unwrap_or(0);
    if interfaces.is_empty() {
        return None;
    }
    let default = interfaces.remove(default);
    interfaces.truncate(others);
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

    fn reported(lines: &[&str]) -> Option<NetworkUsage> {
        let list = interfaces(format!("{TITLES}{}", lines.concat()).as_bytes(), OTHERS).unwrap();
        usage(SystemTime::UNIX_EPOCH, list, OTHERS)
    }

    #[test]
    fn the_default_interface_is_reported_separately() {
        let network = reported(&[LO, IFB, ETH]).unwrap();
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
        assert_eq!(reported(&[LO, IFB]).unwrap().default.name, "ifb0", "without eth0, the first");
    }

    #[test]
    fn names_that_are_not_text_are_escaped_and_stay_unique() {
        let line = |name: &[u8]| [b"  ", name, b": 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n"].concat();
        let names = [&b"\xff0"[..], b"\xfe0", b"\\xff0", b"a\x01", "ü".as_bytes()];
        let list = names.iter().flat_map(|name| line(name)).chain(ETH.bytes()).collect::<Vec<_>>();
        let found: Vec<_> = interfaces(&list[..], OTHERS).unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(found, ["\\xff0", "\\xfe0", "\\x5cxff0", "a\\x01", "ü", "eth0"]);
    }

    #[test]
    fn of_ten_thousand_interfaces_the_default_one_and_few_others_are_reported() {
        let line = |number: usize| format!("  v{number}: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n");
        let many: String = (0..10_000).map(line).collect();
        for lines in [[ETH, &many], [&many, ETH]] {
            let network = reported(&lines).unwrap();
            assert_eq!((network.default.name.as_str(), network.others.len()), ("eth0", OTHERS));
            assert_eq!(network.others[0].name, "v0");
        }
        assert_eq!(
            reported(&[&many]).map(|network| (network.default.name, network.others.len())),
            Some(("v0".into(), OTHERS))
        );
        // Reading stops after the reported interfaces.
        let mut rest = ETH.len();
        let text = format!("{ETH}{many}");
        let mut list = io::Cursor::new(text.as_bytes());
        interfaces(&mut list, OTHERS).unwrap();
        rest += (0..OTHERS).map(|number| line(number).len()).sum::<usize>();
        assert_eq!(list.position(), u64::try_from(rest).unwrap());
    }

    #[test]
    fn no_name_is_reported_twice() {
        let network = reported(&[ETH, IFB, ETH, IFB]).unwrap();
        assert_eq!(network.others.len(), 1);
    }

    #[test]
    fn loopback_alone_gives_no_usage() {
        assert_eq!(reported(&[LO]), None);
        assert_eq!(reported(&[]), None);
    }

    #[test]
    fn lines_of_another_form_are_skipped() {
        let short = "  eth1: 1 2 3\n";
        let words = "  eth2: many 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let longer = "eth3:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let network = reported(&[short, words, longer, "\n", "nonsense"]).unwrap();
        assert_eq!((network.default.name.as_str(), network.default.rx_bytes, network.others.len()), ("eth3", 1, 0));
        assert_eq!((network.default.rx_errors, network.default.tx_bytes, network.default.tx_errors), (3, 9, 11));
    }
}
