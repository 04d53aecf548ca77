//! Sockets that hold ports of the host while a pod has them: no process of the host can listen there, and none that does loses
//! its clients to a pod.
//!
//! The sockets are bound and no more. Rules send what comes to a port to the pod before any socket is looked for. What the rules
//! leave, as at `::1`, is refused as if there were no socket: one of TCP or SCTP that does not listen refuses, and one of UDP is
//! bound to the bridge as well, where such packets do not come from.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use rustix::process::{Resource, getrlimit};

use super::{Forward, HostPort, PortError, SCTP, TCP, UDP};

/// Sockets for one pod, and for all. The ports beyond are looked at once, and not held.
const OF_A_POD: usize = 1024;
const OF_ALL: usize = 8192;
/// The part of the descriptors that the process may have.
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
    /// The log has it that some are missing.
    told: bool,
}

/// What one socket is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bridge) struct Binding {
    port: HostPort,
    /// All addresses of both families.
    both: bool,
}

/// What came of binding.
#[derive(Debug, Default)]
pub(in crate::bridge) struct Bound {
    sockets: Vec<OwnedFd>,
    /// Ports that were free, and are not held.
    pub(in crate::bridge) beyond: usize,
}

impl Sockets {
    /// Notes what is to be held for a pod. What is held for it already stays.
    pub(super) fn want(&mut self, pod: &str, forwards: &[Forward]) {
        if !forwards.is_empty() && !self.pods.contains_key(pod) {
            let sockets = PodSockets { missing: bindings(forwards), ..PodSockets::default() };
            self.pods.insert(pod.to_owned(), sockets);
        }
    }

    /// What is not held yet for a pod, and how many sockets may be.
    pub(in crate::bridge) fn missing(&self, pod: &str) -> (Vec<Binding>, usize) {
        let Some(PodSockets { held, missing, .. }) = self.pods.get(pod) else { return (Vec::new(), 0) };
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / OF_DESCRIPTORS;
        let all = OF_ALL.min(usize::try_from(descriptors).unwrap_or(OF_ALL));
        (missing.clone(), all.saturating_sub(self.held).min(OF_A_POD.saturating_sub(held.len())))
    }

    /// Holds sockets for a pod, and notes what is missing then.
    pub(in crate::bridge) fn keep(&mut self, pod: &str, bound: Bound, missing: Vec<Binding>) {
        if let Some(sockets) = self.pods.get_mut(pod) {
            self.held += bound.sockets.len();
            sockets.held.extend(bound.sockets);
            sockets.missing = missing;
        }
    }

    /// Holds what can be held of what is missing, for pods that are attached: after a start, a process of the host may have a port.
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
                            tracing::warn!(pod, error, "host ports of a pod are not held; trying again");
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

    /// Frees a pod's ports. The rules that lead to the pod are to be gone before.
    pub(in crate::bridge) fn release(&mut self, pod: &str) {
        if let Some(sockets) = self.pods.remove(pod) {
            self.held -= sockets.held.len();
        }
    }
}

/// One socket for a port of both families, and none for an address where all addresses are held.
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

/// Binds sockets, all or none, of which `room` are kept.
pub(in crate::bridge) fn hold(bindings: &[Binding], device: &str, room: usize) -> Result<Bound, PortError> {
    let mut bound = Bound::default();
    for binding in bindings {
        let port = binding.port;
        // A kernel without SCTP has no listener, and binding a socket would load the module.
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
    // Past what is left of connections that are closed; then off, so that no other socket gets past this one.
    set_socket_reuseaddr(&socket, protocol == TCP)?;
    bind(&socket, &SocketAddr::new(address.unwrap_or(any), port))?;
    set_socket_reuseaddr(&socket, false)?;
    if protocol == UDP {
        // Only now: at all devices, the kernel has looked for sockets of any one of them.
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
    fn no_pod_takes_all_descriptors() {
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
