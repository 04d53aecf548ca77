//! Failpoints: a test makes a named step fail, or ends the daemon right there.
//!
//! `CRISP_FAILPOINTS="run_pod.hold=fail,create.cgroup=kill"`. Only in builds with the feature `failpoints`; elsewhere
//! [`at`] is nothing.

/// A step that failed because a test asked for it.
#[derive(Debug, thiserror::Error)]
#[error("failpoint {0}")]
pub(crate) struct Fault(pub(crate) &'static str);

/// Passes, fails or kills, as the environment says for `point`.
#[cfg(feature = "failpoints")]
pub(crate) fn at(point: &'static str) -> Result<(), Fault> {
    let wish = std::env::var("CRISP_FAILPOINTS").unwrap_or_default();
    let action = wish.split(',').find_map(|w| w.split_once('=').filter(|(name, _)| *name == point).map(|(_, a)| a));
    match action {
        Some("fail") => Err(Fault(point)),
        Some("kill") => {
            let own = nix::unistd::getpid();
            nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL).ok();
            Err(Fault(point))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn at(_: &'static str) -> Result<(), Fault> {
    Ok(())
}
