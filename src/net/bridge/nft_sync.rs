//! The table as it is known, and as the kernel has it.

use super::host_ports::Forward;
use super::netlink::NetlinkError;
use super::nft::{self, Table};
use super::state::{Bridge, NftState, State};

impl Bridge {
    /// Makes the table anew unless it is known to be as it should: for these networks, with these ports. Who else changes rules
    /// changes their generation; then there is a second look.
    pub(super) fn check_rules(&self, state: &mut State) -> Result<(), NetlinkError> {
        let known = state.rules.take().filter(|rules| rules.nets == state.nets);
        let forwards = state.ports.all();
        let rules = self.netfilter(|socket| {
            let now = nft::generation(socket)?;
            let whole = match known {
                Some(rules) if rules.generation == now => return Ok(rules),
                Some(_) => self.table(state).is_whole(socket, &forwards)?,
                None => false,
            };
            if !whole {
                self.table(state).replace(socket, &forwards)?;
            }
            let dropping = nft::dropping_chains(socket)?;
            // Not asked for again: what others do meanwhile is looked at next time.
            let generation = if whole { now } else { now.wrapping_add(1) };
            Ok(NftState { nets: state.nets.clone(), generation, dropping })
        })?;
        state.rules = Some(rules);
        Ok(())
    }

    /// Has ports of the host lead to a pod. They are among the known ones already.
    pub(super) fn add_ports(&self, state: &mut State, forwards: &[Forward]) -> Result<(), NetlinkError> {
        let added = self.netfilter(|socket| self.table(state).add(socket, forwards));
        self.changed(state, added)
    }

    /// Takes ports of the host back. They are no longer among the known ones.
    pub(super) fn remove_ports(&self, state: &mut State, forwards: &[Forward]) -> Result<(), NetlinkError> {
        let removed = self.netfilter(|socket| self.table(state).remove(socket, forwards));
        self.changed(state, removed)
    }

    /// Whatever is the matter with a table that cannot be changed: a new one is right.
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
