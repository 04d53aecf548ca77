//! Holds the host ports of pods with sockets, so that no process of the host can listen on them.
//!
//! The sockets are bound only. Rules send packets to the pod before the kernel looks up a socket.
//! Packets that no rule takes, such as those to `::1`, are refused as without a socket: TCP and
//! SCTP sockets that do not listen refuse, and UDP sockets are also bound to the bridge, which
//! never receives such packets.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use rustix::process::{Resource, getrlimit};

use super::{Forward, HostPort, PortError, SCTP, TCP, UDP};

/// Sockets per pod, and in total. Further ports are only checked once, not held.
const OF_A_POD: usize = 1024;
const OF_ALL: usize = 8192;
/// The share of the process's file descriptors for sockets.
const OF_DESCRIPTORS: u64 = 4;

/// The sockets of all pods.
#[derive(Debug, Default)]
pub(in crate::bridge) struct Sockets {
    pods: BTreeMap<String, PodSockets>,
    held: usize,
}

#[derive(Debug, Default)]
struct PodSockets {
    held: Vec<OwnedFd>,
    missing: Vec<Binding>,
    /// A log entry about missing sockets exists.
    told: bool,
}

/// The address and port of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bridge) struct Binding {
    port: HostPort,
    /// All addresses of both families.
    both: bool,
}

/// The result of binding.
#[derive(Debug, Default)]
pub(in crate::bridge) struct Bound {
    sockets: Vec<OwnedFd>,
    /// Ports that were free but are not held.
    pub(in crate::bridge) beyond: usize,
}

impl Sockets {
    /// Records the ports to hold for a pod. Ports that are held for it stay.
    pub(super) fn want(&mut self, pod: &str, forwards: &[Forward]) {
        if !forwards.is_empty() && !self.pods.contains_key(pod) {
            let sockets = PodSockets { missing: bindings(forwards), ..PodSockets::default() };
            self.pods.insert(pod.to_owned(), sockets);
        }
    }

    /// Returns the ports that are not held yet for a pod, and the number of sockets that it may
    /// add.
    pub(in crate::bridge) fn missing(&self, pod: &str) -> (Vec<Binding>, usize) {
        let Some(PodSockets { held, missing, .. }) = self.pods.get(pod) else { return (Vec::new(), 0) };
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / OF_DESCRIPTORS;
        let all = OF_ALL.min(usize::try_from(descriptors).unwrap_or(OF_ALL));
        (missing.clone(), all.saturating_sub(self.held).min(OF_A_POD.saturating_sub(held.len())))
    }

    /// Binds sockets for a pod, and records those that are missing.
    pub(in crate::bridge) fn keep(&mut self, pod: &str, bound: Bound, missing: Vec<Binding>) {
        if let Some(sockets) = self.pods.get_mut(pod) {
            self.held += bound.sockets.len();
            sockets.held.extend(bound.sockets);
            sockets.missing = missing;
        }
    }

    /// Binds missing sockets of attached pods: at a start, a process of the host may still have a
    /// port.
    pub(in crate::bridge) fn hold_missing(&mut self, device: &str, attached: impl Fn(&str) -> bool) {
        let lacking = self.pods.iter().filter(|(pod, sockets)| attached(pod) && !sockets.missing.is_empty());
        let lacking: Vec<_> = lacking.map(|(pod, sockets)| (pod.clone(), sockets.told)).collect();
        for (pod, told) in lacking {
            let (missing, room) = self.missing(&pod);
            let (mut bound, mut left) = (Bound::default(), Vec::new());
            for binding in missing {
                match hold(&[binding], device, room - bound.sockets.len()) {
                    Ok(one) => bound.sockets.extend(one.sockets),
                    Err(error) => {
                        if left.is_empty() && !told {
                            let error: &(dyn std::error::Error + 'static) = &error;
                            tracing::warn!(pod, error, "cannot reserve the host ports of a pod; will retry");
                        }
                        left.push(binding);
                    }
                }
            }
            let lacks = !left.is_empty();
            self.keep(&pod, bound, left);
            if let Some(sockets) = self.pods.get_mut(&pod) {
                sockets.told = lacks;
            }
        }
    }

    /// Frees a pod's ports. Remove the rules for the pod first.
    pub(in crate::bridge) fn release(&mut self, pod: &str) {
        if let Some(sockets) = self.pods.remove(pod) {
            self.held -= sockets.held.len();
        }
    }
}

/// Returns one socket for a port of both families, and none for an address if all addresses are
/// held.
fn bindings(forwards: &[Forward]) -> Vec<Binding> {
    let ports: BTreeMap<HostPort, ()> = forwards.iter().map(|forward| (forward.from, ())).collect();
    let has = |port: HostPort| ports.contains_key(&port);
    let binding = |port: &HostPort| {
        let all = HostPort { address: None, ..*port };
        let twin = HostPort { v6: !port.v6, ..all };
        let covered = (port.address.is_some() && has(all)) || (port.address.is_none() && !port.v6 && has(twin));
        (!covered).then(|| Binding { port: *port, both: port.address.is_none() && has(twin) })
    };
    ports.keys().filter_map(binding).collect()
}

/// Binds all sockets or none, and keeps `room` of them.
pub(in crate::bridge) fn hold(bindings: &[Binding], device: &str, room: usize) -> Result<Bound, PortError> {
    let mut bound = Bound::default();
    for binding in bindings {
        let port = binding.port;
        // Without the SCTP module nothing can listen, and binding a socket would load the module.
        if port.protocol == SCTP && !Path::new("/proc/thread-self/net/sctp").exists() {
            continue;
        }
        match open(*binding, device) {
            Ok(socket) if bound.sockets.len() < room => bound.sockets.push(socket),
            Ok(_) => bound.beyond += 1,
            Err(source) => return Err(refusal(port, source)),
        }
    }
    Ok(bound)
}

fn refusal(port: HostPort, source: io::Error) -> PortError {
    match (source.kind(), port.address) {
        (io::ErrorKind::AddrInUse, _) => PortError::InUse { port },
        (io::ErrorKind::AddrNotAvailable, Some(host_ip)) => PortError::NotLocal { host_ip },
        _ => PortError::Hold { port, source },
    }
}

fn open(Binding { port, both }: Binding, device: &str) -> io::Result<OwnedFd> {
    let HostPort { v6, protocol, port, address } = port;
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let (kind, number) = match protocol {
        TCP => (SocketType::STREAM, ipproto::TCP),
        UDP => (SocketType::DGRAM, ipproto::UDP),
        _ => (SocketType::STREAM, ipproto::SCTP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(number))?;
    if v6 {
        set_ipv6_v6only(&socket, !both)?;
    }
    let any = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    // On to bind beside closed connections in TIME_WAIT; then off, so that no other socket can
    // bind.
    set_socket_reuseaddr(&socket, protocol == TCP)?;
    bind(&socket, &SocketAddr::new(address.unwrap_or(any), port))?;
    set_socket_reuseaddr(&socket, false)?;
    if protocol == UDP {
        // After bind(2): without a device, the kernel also compares with sockets of any device.
        sys::netns::bind_to_device(&socket, device)?;
        set_socket_recv_buffer_size(&socket, 0)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(v6: bool, protocol: u8, address: &str) -> Forward {
        let address = address.parse().ok();
        let to = SocketAddr::new(if v6 { [0; 16].into() } else { [10, 1, 0, 2].into() }, 80);
        Forward { from: HostPort { v6, protocol, port: 80, address }, to }
    }

    #[test]
    fn a_port_of_both_families_takes_one_socket() {
        let both = [forward(false, TCP, ""), forward(true, TCP, "")];
        assert_eq!(bindings(&both), [Binding { port: both[1].from, both: true }]);
        let apart = [forward(false, TCP, ""), forward(true, UDP, "")];
        assert_eq!(bindings(&apart).len(), 2);
        assert!(bindings(&apart).iter().all(|binding| !binding.both));
    }

    #[test]
    fn an_address_takes_no_socket_beside_one_for_all_addresses() {
        let port = [forward(false, TCP, ""), forward(false, TCP, "192.0.2.1"), forward(true, TCP, "2001:db8::1")];
        let bound: Vec<_> = bindings(&port).iter().map(|binding| binding.port).collect();
        assert_eq!(bound, [port[0].from, port[2].from]);
    }

    #[test]
    fn one_pod_cannot_use_all_descriptors() {
        let mut sockets = Sockets::default();
        sockets.want("a", &[forward(false, TCP, "")]);
        let (missing, room) = sockets.missing("a");
        assert_eq!(missing.len(), 1);
        assert!((1..=OF_A_POD).contains(&room), "{room}");
        sockets.held = OF_ALL;
        assert_eq!(sockets.missing("a").1, 0);
        assert_eq!(sockets.missing("b"), (Vec::new(), 0));
    }
}
