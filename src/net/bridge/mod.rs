//! A bridge of crisp's own: for nodes that have no CNI configuration.
//!
//! It needs a kernel and nothing else: no `ip`, no `nft`, no plugin. Links, addresses, routes, rules and known connections are
//! spoken of with the kernel over netlink, in as few system calls as can be.
//!
//! ```text
//!   pod                    host                                             outside
//!   eth0 ═══ crisp0-1a2b3c4d ─┐
//!                             ├─ crisp0 (bridge, first address of the pool) ─ eth0 …
//!   eth0 ═══ crisp0-5e6f7081 ─┘     └ table inet crisp: masquerade, host ports; table bridge crisp: what pods may send
//! ```
//!
//! A pod has its addresses alone and one neighbour, the bridge, by whose way it reaches the other pods, too. Bridge and pods know each
//! other's Ethernet addresses for good; nobody is asked, and no answer changes them. The bridge takes from a pod's port what comes from
//! the Ethernet address and the addresses that the pod was given, and learns nothing from it.
//!
//! [`Bridge::open`] touches nothing. Whoever calls then tells of the pods that live ([`Bridge::restore`]) and lets
//! [`Bridge::gc`] remove what others left. [`Bridge::set_up`] makes what is missing, now and whenever somebody took it away: the
//! bridge, its addresses, its ports, the table with all host ports. For a pod: [`Bridge::reserve`] gives addresses, which can be
//! written down before anything is made; [`Bridge::attach`] makes the interface; [`Bridge::detach`] takes everything back, as
//! often as it is called.
//!
//! `Bridge::acquire`, which is the first step of all that change something, keeps two daemons of one network namespace from having
//! the same bridge.
//!
//! What it changes on the host: the bridge, interfaces whose names begin with the bridge's, its own table in nftables and an empty one,
//! `net.ipv4.ip_forward`, and with a pool of IPv6 `net.ipv6.conf.all.forwarding` (interfaces that listen to routers go on
//! listening: `accept_ra` 2 instead of 1). For host ports `route_localnet` of the bridge, and sockets that hold them.
//!
//! Limits:
//! - Where another table drops what is forwarded, as docker's and many firewalls' do, no rule of ours can let it pass: a packet has
//!   to please all tables. [`Bridge::set_up`] names such chains as warnings, save those of the older iptables, which nftables does
//!   not know of. The remedy is a rule there, such as `iptables -I DOCKER-USER -i crisp0 -j ACCEPT` and the same with `-o`.
//! - Who flushes all rules takes ours along, until the next [`Bridge::set_up`] or [`Bridge::attach`].
//! - A pod that uses a host port, its own or a neighbour's, is seen with the bridge's address; so are users on the host's
//!   localhost. All others are seen with their own.
//! - Host ports do not answer at `[::1]`: the kernel lets no answer come back to that address. It refuses, so `localhost` works by
//!   way of 127.0.0.1.
//! - Packets between pods are routed like all others, also where no rules are asked about what is bridged.
//! - While no daemon runs, host ports are not held: a program of the host that begins to listen on one then is not reached.
//! - Pods that an earlier version attached are held to their addresses, but look for their neighbours themselves, as long as they live.
//! - Pods still see each other's broadcasts and multicasts.
//! - What a pod may send is limited inside its namespace, where `CAP_NET_ADMIN` can lift it.

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
