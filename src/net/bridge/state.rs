//! The state of the bridge network: settings and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use ipnet::IpNet;
use model::{ErrorClass, ErrorKind, PortMapping};
use sync::Mutex;

use super::bridge_lock::BridgeLock;
use super::host_ports::{PortError, Ports};
use super::ipam::{AddressPool, AddressTaken, ReserveError};
use super::link::{Mac, PodLink};
use super::netlink::{NetlinkError, Socket};
use super::nft::Ruleset;
use super::settings::{PoolsError, Settings, SettingsError, check_pools};
use super::{ipam, pool_position};

/// The built-in network.
#[derive(Debug)]
pub struct Bridge {
    pub(super) settings: Settings,
    state: Arc<Mutex<State>>,
    /// Unused netfilter sockets. They are kept, since closing one waits until the kernel has freed
    /// removed rules.
    idle: Mutex<Vec<Socket>>,
    /// `None` until the first attempt.
    pub(super) claim: Mutex<Option<BridgeLock>>,
}

/// Changed under the lock, together with the state of the kernel.
#[derive(Debug)]
pub(super) struct State {
    pub(super) pool: AddressPool,
    /// The file for the pool's position.
    pub(super) position: Option<PathBuf>,
    pub(super) ports: Ports,
    /// The networks of pods: the pools, and older ones that pods still use.
    pub(super) nets: Vec<IpNet>,
    /// Detached pods whose interfaces may still exist.
    pub(super) leaving: BTreeSet<String>,
    /// Pods whose packets the bridge accepts, with their addresses.
    pub(super) attached: BTreeMap<String, Vec<IpAddr>>,
    /// `None` until it is created, and when another process may have removed it.
    pub(super) made: Option<BridgeLink>,
    /// The bridge's Ethernet address: a new bridge gets the same, since pods have it as a permanent
    /// neighbour.
    pub(super) mac: Option<Mac>,
    /// `None` while the kernel's tables may differ from the expected ones.
    pub(super) rules: Option<NftState>,
}

/// The bridge in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BridgeLink {
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) mac: Mac,
}

/// The tables in the kernel.
#[derive(Debug)]
pub(super) struct NftState {
    pub(super) nets: Vec<IpNet>,
    /// While the kernel's rules are of this generation, no other process changed any.
    pub(super) generation: u32,
    /// The tables as the kernel listed them after their creation; `None` if another process changed
    /// rules at that time.
    pub(super) ruleset: Option<Ruleset>,
    /// Chains of other tables that drop forwarded packets.
    pub(super) dropping: Vec<String>,
}

/// A running pod whose addresses or ports conflict with another.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Address(#[from] AddressTaken),
    #[error(transparent)]
    Port(#[from] PortError),
}

impl ErrorClass for RestoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Address(e) => e.kind(),
            Self::Port(e) => e.kind(),
        }
    }
}

/// New pools that were rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolInUse {
    #[error(transparent)]
    Pools(#[from] PoolsError),
    #[error("cannot change the address pools: pod {pod} uses {address}, outside of {}", .asked.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", "))]
    Lives { pod: String, address: IpAddr, asked: Vec<IpNet> },
}

impl ErrorClass for PoolInUse {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Pools(e) => e.kind(),
            Self::Lives { .. } => ErrorKind::Precondition,
        }
    }
}

impl Bridge {
    /// Checks the settings only. The kernel's state stays as it is until [`Self::set_up`] or
    /// [`Self::attach`].
    pub fn open(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let pool = AddressPool::new(settings.pools.clone());
        let nets = settings.pools.clone();
        let (ports, leaving) = (Ports::default(), BTreeSet::new());
        let attached = BTreeMap::new();
        let (position, made, mac, rules) = (None, None, None, None);
        let state = State { pool, position, ports, nets, leaving, attached, made, mac, rules };
        Ok(Self { settings, state: Arc::new(Mutex::new(state)), idle: Mutex::default(), claim: Mutex::default() })
    }

    /// Restores a running pod after a start. Call it for all pods before any other operation.
    pub fn restore(&self, pod: &str, ips: &[IpAddr], ports: &[PortMapping]) -> Result<(), RestoreError> {
        let mut state = self.lock();
        state.pool.take(pod, ips)?;
        state.attached.insert(pod.to_owned(), ips.to_vec());
        state.ports.claim(pod, ports, ips)?;
        state.rules = None;
        Ok(())
    }

    /// Allocates addresses for a pod: one of each pool, in their order. They stay allocated until
    /// [`Self::detach`] or [`Self::release`].
    pub fn reserve(&self, pod: &str) -> Result<Vec<IpAddr>, ReserveError> {
        let mut state = self.lock();
        let ips = state.pool.reserve(pod)?;
        pool_position::keep(&mut state);
        Ok(ips)
    }

    /// Frees the addresses of a pod that was not attached.
    pub fn release(&self, pod: &str) {
        self.lock().pool.release(pod);
    }

    /// Returns the pools.
    pub fn pools(&self) -> Vec<IpNet> {
        self.lock().pool.nets().to_vec()
    }

    /// Replaces the pools for new pods by the node's pod CIDRs from the kubelet.
    ///
    /// Fails while a pod has an address outside of them. The caller stores the CIDRs: the kubelet
    /// does not send them again after a start of the daemon.
    pub fn set_pod_cidrs(&self, pools: Vec<IpNet>) -> Result<(), PoolInUse> {
        check_pools(&pools)?;
        let mut state = self.lock();
        if state.pool.nets() == pools {
            return Ok(());
        }
        let outside = state.pool.taken().find(|(ip, _)| !pools.iter().any(|net| ipam::is_for_pods(net, **ip)));
        if let Some((address, pod)) = outside {
            return Err(PoolInUse::Lives { pod: pod.to_owned(), address: *address, asked: pools });
        }
        state.pool.move_to(pools);
        state.made = None;
        state.rules = None;
        Ok(())
    }

    /// Returns the name of a pod's interface on the host.
    pub(super) fn link_name(&self, pod: &str) -> String {
        let digits: String = pod.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        format!("{}{digits}", self.link_prefix())
    }

    pub(super) fn pod_link(&self, pod: &str, ips: &[IpAddr]) -> PodLink {
        let mac = ips.first().map(|ip| ipam::mac(*ip)).unwrap_or_default();
        PodLink { name: self.link_name(pod), mac, ips: ips.to_vec() }
    }

    /// Returns the interfaces of all attached pods.
    pub(super) fn pod_links(&self, state: &State) -> Vec<PodLink> {
        state.attached.iter().map(|(pod, ips)| self.pod_link(pod, ips)).collect()
    }

    pub(super) fn link_prefix(&self) -> String {
        format!("{}-", self.settings.bridge)
    }

    /// Returns whether another pod has an interface of that name: ids can begin alike.
    pub(super) fn is_of_another(&self, state: &State, pod: &str) -> bool {
        let name = self.link_name(pod);
        state.pool.taken().any(|(_, other)| other != pod && self.link_name(other) == name)
    }

    /// Returns the interfaces of known pods, by name.
    pub(super) fn remaining(&self, state: &State) -> BTreeSet<String> {
        let stays = state.pool.taken().filter(|(_, pod)| !state.leaving.contains(*pod));
        stays.map(|(_, pod)| self.link_name(pod)).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn shared(&self) -> Arc<Mutex<State>> {
        Arc::clone(&self.state)
    }

    /// Runs `talk` with a netfilter socket. A socket with an error is not reused.
    pub(super) fn netfilter<T>(
        &self,
        talk: impl FnOnce(&Socket) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let idle = lock(&self.idle).pop();
        let socket = idle.map_or_else(Socket::netfilter, Ok)?;
        let said = talk(&socket)?;
        lock(&self.idle).push(socket);
        Ok(said)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
