//! A registered plugin becomes part of the roster.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Inner, State, count};
use crate::api::ContainerUpdate;
use crate::host::Observation;
use crate::identity::Identity;
use crate::merge::{Eviction, Update, Updates};
use crate::plugin::{End, Registered, Session, Times, Worker};
use crate::wire::CloseReason;

/// Connected plugins.
const PLUGINS_MAX: usize = 128;

const REPLACED: &str = "replaced by a newer connection of the same name";

/// Returns the reason for which a plugin cannot join. `known` is the session of its name.
fn may_join(state: &State, plugin: &Registered, known: Option<usize>) -> Result<(), &'static str> {
    if state.is_shut_down {
        return Err("the daemon ends");
    }
    if plugin.connection.is_closed() {
        return Err("closed while it waited to be synchronized");
    }
    match known {
        // The last connection of a name wins, whichever waited longer.
        Some(position) if state.sessions[position].plugin().number > plugin.number => Err(REPLACED),
        None if state.sessions.len() >= PLUGINS_MAX => Err("too many plugins, at most 128"),
        _ => Ok(()),
    }
}

impl Inner {
    /// Synchronizes the plugin and makes its calls, until its connection is closed. `on_active` is
    /// called after the first synchronization.
    pub(super) async fn serve(self: &Arc<Self>, plugin: Arc<Registered>, on_active: impl FnOnce()) {
        let mut on_active = Some(on_active);
        let mut previous: Option<Arc<Session>> = None;
        loop {
            let Some((session, worker, epoch)) = self.join(&plugin).await else {
                if let Some(previous) = previous {
                    self.ended(&previous, plugin.connection.closed().await);
                }
                return;
            };
            let before = async {
                let limit = session.shared.times.sync;
                if tokio::time::timeout(limit, self.before(epoch, previous.take())).await.is_err() {
                    // The snapshot may lack the objects of a request that takes this long.
                    session.shared.rejoin.notify_one();
                }
            };
            let updates = match worker.synchronize(before, &*self.host).await {
                Ok(updates) => updates,
                Err(error) => {
                    tracing::warn!(plugin = %plugin.identity, %error, "the plugin cannot be synchronized");
                    return self.ended(&session, plugin.connection.closed().await);
                }
            };
            tracing::info!(plugin = %plugin.identity, events = ?plugin.events, "the plugin is active");
            self.apply_later(&plugin, updates);
            if let Some(on_active) = on_active.take() {
                on_active();
            }
            // A worker whose session is replaced still answers its calls.
            let inner = self.clone();
            let mut work = tokio::spawn(async move { worker.run(&*inner.host).await });
            tokio::select! {
                end = &mut work => {
                    let reason = match end {
                        Ok(End::Closed(reason)) => reason,
                        Ok(End::Replaced) => plugin.connection.closed().await,
                        Err(panic) => CloseReason::ByRuntime(format!("its worker failed: {panic}")),
                    };
                    plugin.connection.close(reason.clone());
                    return self.ended(&session, reason);
                }
                () = session.shared.rejoin.notified() => {}
            }
            tracing::info!(plugin = %plugin.identity, "the plugin has missed events; it is synchronized again");
            previous = Some(session);
        }
    }

    /// Adds a session in place of an earlier one of the same name. Waits until the plugin may be
    /// synchronized again; `None` if its connection is closed before.
    async fn join(&self, plugin: &Arc<Registered>) -> Option<(Arc<Session>, Worker, u64)> {
        let settings = self.settings();
        let identity = &plugin.identity;
        loop {
            let due = self.join_due(identity, settings.sync_interval);
            tokio::select! {
                biased;
                _ = plugin.connection.closed() => return None,
                () = tokio::time::sleep_until(due) => {}
            }
            let times = Times {
                request: settings.request_timeout(identity.name()),
                sync: settings.sync_timeout(identity.name()),
            };
            let mut state = self.state.lock();
            let now = Instant::now();
            state.synchronized.retain(|_, last| *last + settings.sync_interval > now);
            if state.synchronized.contains_key(identity) {
                continue;
            }
            let known = state.sessions.iter().position(|known| known.plugin().identity == *identity);
            if let Err(reason) = may_join(&state, plugin, known) {
                plugin.connection.close(CloseReason::ByRuntime(reason.to_owned()));
                return None;
            }
            state.synchronized.insert(identity.clone(), now);
            let (session, worker) = Session::new(plugin.clone(), times);
            let session = Arc::new(session);
            if let Some(position) = known {
                let old = state.sessions.remove(position);
                if old.plugin().number != plugin.number {
                    old.plugin().connection.close(CloseReason::ByRuntime(REPLACED.to_owned()));
                }
            }
            state.sessions.push(session.clone());
            state.sessions.sort_by(|a, b| {
                let key = |session: &Session| (session.plugin().identity.clone(), session.plugin().number);
                key(a).cmp(&key(b))
            });
            let epoch = state.next_turn;
            drop(state);
            count(&self.sessions_changed);
            return Some((session, worker, epoch));
        }
    }

    /// Returns when a plugin of this name may be synchronized.
    fn join_due(&self, identity: &Identity, interval: Duration) -> Instant {
        let state = self.state.lock();
        state.synchronized.get(identity).map_or_else(Instant::now, |last| *last + interval)
    }

    /// Waits until all turns before `epoch` have ended, and all calls of the previous session.
    async fn before(&self, epoch: u64, previous: Option<Arc<Session>>) {
        let done = previous.as_ref().map(|session| session.shared.is_done.subscribe());
        drop(previous);
        let mut ended = self.turns_ended.subscribe();
        loop {
            ended.mark_unchanged();
            let is_open = self.state.lock().open_turns.first().is_some_and(|first| *first < epoch);
            if !is_open || ended.changed().await.is_err() {
                break;
            }
        }
        if let Some(mut done) = done {
            // An error means that the worker was dropped, so it makes no more calls.
            drop(done.wait_for(|is_done| *is_done).await);
        }
    }

    fn ended(&self, session: &Session, reason: CloseReason) {
        self.state.lock().sessions.retain(|other| !std::ptr::eq(&**other, session));
        count(&self.sessions_changed);
        let identity = &session.plugin().identity;
        self.host.observe(identity, Observation::Closed { reason: &reason });
        tracing::info!(plugin = %identity, %reason, "the plugin is disconnected");
    }

    /// Makes the changes of an answer to Synchronize. Not waited for: they may need the locks of
    /// requests that wait for this plugin.
    fn apply_later(self: &Arc<Self>, plugin: &Arc<Registered>, updates: Vec<ContainerUpdate>) {
        if updates.is_empty() {
            return;
        }
        let (inner, plugin) = (self.clone(), plugin.clone());
        tokio::spawn(async move {
            let failed = inner.change(&plugin.identity, updates, Vec::new()).await;
            if !failed.is_empty() {
                let containers = failed.iter().map(|update| update.container_id.as_str()).collect::<Vec<_>>().join(" ");
                tracing::warn!(plugin = %plugin.identity, containers, "updates of containers failed");
            }
        });
    }

    /// Makes changes that a plugin requests, and returns those that failed and count.
    pub(super) async fn change(
        &self,
        identity: &Identity,
        requested: Vec<ContainerUpdate>,
        evictions: Vec<crate::api::ContainerEviction>,
    ) -> Vec<ContainerUpdate> {
        let allow = self.settings().allow(identity.name());
        let plugin = identity.to_string();
        let mut updates = Updates::default();
        let mut failed = Vec::new();
        for update in &requested {
            if let Err(error) = updates.add(&plugin, &allow, vec![update.clone()]) {
                tracing::warn!(%plugin, container = update.container_id, %error, "the update is refused");
                failed.push(update.container_id.clone());
            }
        }
        if let Err(error) = updates.evict(&plugin, &allow, evictions) {
            tracing::warn!(%plugin, %error, "the evictions are refused");
        }
        let (updates, evictions): (Vec<Update>, Vec<Eviction>) = updates.finish();
        if !updates.is_empty() || !evictions.is_empty() {
            failed.extend(self.host.change_containers(identity, updates, evictions).await);
        }
        requested.into_iter().filter(|update| !update.ignore_failure && failed.contains(&update.container_id)).collect()
    }
}
