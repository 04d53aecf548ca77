//! Keeps the nftables tables in the kernel equal to the expected ones.

use super::host_ports::Forward;
use super::link::PodLink;
use super::netlink::NetlinkError;
use super::nft::{self, Contents, Listing, Table};
use super::state::{Bridge, NftState, State};

impl Bridge {
    /// Replaces the tables unless the kernel has them as they were created, for these networks and
    /// elements. Every transaction of any process changes the generation of the rules: only then
    /// are the tables listed and compared.
    pub(super) fn check_rules(&self, state: &mut State) -> Result<(), NetlinkError> {
        let known = state.rules.take().filter(|rules| rules.nets == state.nets);
        let (forwards, links) = (state.ports.all(), self.pod_links(state));
        let contents = Contents { forwards: &forwards, links: &links };
        let rules = self.netfilter(|socket| {
            let table = self.table(state);
            let now = nft::generation(socket)?;
            if let Some(known) = known {
                if known.generation == now {
                    return Ok(known);
                }
                let Listing { ruleset, dropping } = table.list(socket)?;
                if known.ruleset.as_ref() == Some(&ruleset) && table.has_elements(socket, contents)? {
                    return Ok(NftState { generation: now, dropping, ..known });
                }
            }
            table.replace(socket, contents)?;
            // Not read from the kernel: changes of others since `now` are found at the next check.
            let generation = now.wrapping_add(1);
            let Listing { ruleset, dropping } = table.list(socket)?;
            // If another process changed rules meanwhile, the list may contain its changes.
            let ruleset = (nft::generation(socket)? == generation).then_some(ruleset);
            Ok(NftState { nets: state.nets.clone(), generation, ruleset, dropping })
        })?;
        state.rules = Some(rules);
        Ok(())
    }

    /// Adds the elements of a pod, which is already in the state: its source addresses and host
    /// ports.
    pub(super) fn add_elements(
        &self,
        state: &mut State,
        link: &PodLink,
        forwards: &[Forward],
    ) -> Result<(), NetlinkError> {
        let contents = Contents { forwards, links: std::slice::from_ref(link) };
        let added = self.netfilter(|socket| self.table(state).add(socket, contents));
        self.changed(state, added)
    }

    /// Removes the elements of pods, which are no longer in the state.
    pub(super) fn remove_elements(
        &self,
        state: &mut State,
        links: &[PodLink],
        forwards: &[Forward],
    ) -> Result<(), NetlinkError> {
        let removed = self.netfilter(|socket| self.table(state).remove(socket, Contents { forwards, links }));
        self.changed(state, removed)
    }

    /// If a change failed, whatever the reason, the tables are replaced.
    fn changed(&self, state: &mut State, outcome: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
        if outcome.is_ok() {
            if let Some(rules) = &mut state.rules {
                rules.generation = rules.generation.wrapping_add(1);
            }
            return Ok(());
        }
        state.rules = None;
        self.check_rules(state)
    }

    fn table<'a>(&'a self, state: &'a State) -> Table<'a> {
        Table { name: &self.settings.table, bridge: &self.settings.bridge, nets: &state.nets }
    }
}
