//! The built-in bridge network, for nodes without a CNI configuration.
//!
//! It needs only the kernel: no `ip`, no `nft`, no plugin. It manages links, addresses, routes,
//! rules and tracked connections over netlink, with as few system calls as possible.
//!
//! ```text
//!   pod                    host                                             outside
//!   eth0 ═══ crisp0-1a2b3c4d ─┐
//!                             ├─ crisp0 (bridge, first address of the pool) ─ eth0 …
//!   eth0 ═══ crisp0-5e6f7081 ─┘     ├ table inet crisp: masquerade, host ports
//!                                   └ table bridge crisp: filter for frames of pods
//! ```
//!
//! A pod has its own addresses and one neighbour, the bridge, which also routes to the other pods.
//! The bridge and the pods have permanent neighbour entries for each other. The bridge accepts from
//! a pod's port only packets from the Ethernet address and the addresses of the pod, and learns
//! nothing from them.
//!
//! [`Bridge::open`] changes nothing. The caller then restores the running pods
//! ([`Bridge::restore`]) and removes leftovers ([`Bridge::gc`]). [`Bridge::set_up`] creates what is
//! missing, also later when another process removed it: the bridge, its addresses, its ports, the
//! tables with all host ports. For a pod: [`Bridge::reserve`] allocates addresses, which can be
//! recorded before anything is created; [`Bridge::attach`] creates the interface;
//! [`Bridge::detach`] removes everything and may be repeated.
//!
//! `Bridge::acquire`, the first step of every change, prevents two daemons in one network namespace
//! from using the same bridge.
//!
//! Changes on the host: the bridge, interfaces whose names begin with the bridge's, the nftables
//! tables and an empty one for the lock, `net.ipv4.ip_forward`, and with an IPv6 pool
//! `net.ipv6.conf.all.forwarding` (`accept_ra` becomes 2 where it was 1, so that interfaces still
//! accept router advertisements). For host ports: `route_localnet` of the bridge, and sockets.
//!
//! Limits:
//! - If another table drops forwarded packets, as that of docker and many firewalls do, the
//!   bridge's rules cannot accept them: a packet must pass all tables. [`Bridge::set_up`] reports
//!   such chains as warnings, except those of legacy iptables, which nftables does not list. Add a
//!   rule there, such as `iptables -I DOCKER-USER -i crisp0 -j ACCEPT` and the same with `-o`.
//! - `nft flush ruleset` also removes the bridge's rules, until the next [`Bridge::set_up`] or
//!   [`Bridge::attach`].
//! - Connections to host ports from pods and from the host's loopback have the bridge's address as
//!   their source. All others keep their own.
//! - Host ports are not reachable at `[::1]`, since the kernel does not route replies to that
//!   address. Connections are refused, so clients of `localhost` continue with 127.0.0.1.
//! - Packets between pods are routed, so rules for routed packets apply to them, also without
//!   br_netfilter.
//! - While no daemon runs, host ports are not held: a process of the host that listens on one of
//!   them then receives no connections.
//! - Pods that an earlier version attached have filtered addresses but no permanent neighbours.
//! - Pods receive each other's broadcasts and multicasts.
//! - The limit of sent packets is in the pod's namespace, so a container with `CAP_NET_ADMIN` can
//!   remove it.

mod attach;
mod bridge_lock;
mod detach;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gc;
mod host_ports;
mod ipam;
mod link;
mod netlink;
mod nft;
mod nft_sync;
mod pool_position;
mod settings;
mod setup;
mod state;
mod sysctl;
#[cfg(test)]
mod tests;

pub use attach::AttachError;
pub use detach::DetachError;
pub use gc::GcError;
pub use host_ports::{HostPort, PortError};
pub use ipam::{AddressTaken, ReserveError};
pub use link::LinkRemoval;
pub use netlink::NetlinkError;
pub use settings::{PoolsError, Settings, SettingsError};
pub use setup::NotReady;
pub use state::{Bridge, PoolInUse, RestoreError};
pub use sysctl::SysctlError;
