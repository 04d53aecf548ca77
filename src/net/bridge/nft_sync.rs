//! The tables as they are known, and as the kernel has them.

use super::host_ports::Forward;
use super::link::PodLink;
use super::netlink::NetlinkError;
use super::nft::{self, Contents, Table};
use super::state::{Bridge, NftState, State};

impl Bridge {
    /// Makes the tables anew unless they are known to be as they should: for these networks, with these elements. Who else changes rules
    /// changes their generation; then there is a second look.
    pub(super) fn check_rules(&self, state: &mut State) -> Result<(), NetlinkError> {
        let known = state.rules.take().filter(|rules| rules.nets == state.nets);
        let (forwards, links) = (state.ports.all(), self.pod_links(state));
        let contents = Contents { forwards: &forwards, links: &links };
        let rules = self.netfilter(|socket| {
            let now = nft::generation(socket)?;
            let whole = match known {
                Some(rules) if rules.generation == now => return Ok(rules),
                Some(_) => self.table(state).is_whole(socket, contents)?,
                None => false,
            };
            if !whole {
                self.table(state).replace(socket, contents)?;
            }
            let dropping = nft::dropping_chains(socket)?;
            // Not asked for again: what others do meanwhile is looked at next time.
            let generation = if whole { now } else { now.wrapping_add(1) };
            Ok(NftState { nets: state.nets.clone(), generation, dropping })
        })?;
        state.rules = Some(rules);
        Ok(())
    }

    /// Has the bridge take what a pod sends, and ports of the host lead to it. They are among the known ones already.
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

    /// Takes that back. They are no longer among the known ones.
    pub(super) fn remove_elements(
        &self,
        state: &mut State,
        links: &[PodLink],
        forwards: &[Forward],
    ) -> Result<(), NetlinkError> {
        let removed = self.netfilter(|socket| self.table(state).remove(socket, Contents { forwards, links }));
        self.changed(state, removed)
    }

    /// Whatever is the matter with tables that cannot be changed: new ones are right.
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
