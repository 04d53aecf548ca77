//! Sends active limits to systemd, and restores the files that systemd changes then.

use std::io;
use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};

use super::{Property, SystemdError, properties};
use crate::cgroup::Cgroup;
use crate::devices::Policy;
use crate::limits::knob::{CgroupFs as _, Knob, Unreadable, Values};
use crate::limits::value::KnobValue;

/// A failed request to systemd; the active limits are as before.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("setting the limits of {unit} in systemd")]
    Systemd { unit: String, source: SystemdError },
    #[error("setting the limits of {unit} in systemd")]
    Unreadable { unit: String, source: Unreadable },
    #[error("reading the cgroup file {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("restoring {value:?} in {file}, which systemd changed")]
    Restore { file: PathBuf, value: String, source: io::Error },
}

impl ErrorClass for SyncError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Systemd { source, .. } => source.kind(),
            Self::Unreadable { .. } | Self::Read { .. } | Self::Restore { .. } => ErrorKind::Internal,
        }
    }
}

impl Cgroup {
    /// Sends the current values of written files to systemd, so that it writes them at its next
    /// reload; a rollback sends the old values. systemd writes them at once and rounds some: each
    /// file is restored afterwards. With the cgroupfs driver, and for files without a property,
    /// nothing is sent.
    pub fn sync(&self, changed: &Values) -> Result<(), SyncError> {
        let Some((systemd, unit)) = self.unit() else { return Ok(()) };
        let mut now = Values::new();
        for knob in properties::not_representable(self.version()) {
            if let Some(value) = self.held(&knob)? {
                now.insert(knob, value);
            }
        }
        let failed = |source| SyncError::Unreadable { unit: unit.name().to_owned(), source };
        let told = properties::of(self.version(), systemd.version(), &now, changed).map_err(failed)?;
        if told.is_empty() {
            return Ok(());
        }
        let outcome = systemd.set(unit, &told);
        // Also after a failure: a part may have been applied.
        for (knob, value) in &now {
            let kept = match self.held(knob)? {
                Some(found) => knob.same(&found, value),
                // systemd disables a controller that no unit needs: the cpuset is then empty, as
                // with an empty property.
                None => value.text().is_empty(),
            };
            if !kept {
                self.write(knob, value.text()).map_err(|source| SyncError::Restore {
                    file: self.location(knob),
                    value: value.to_string(),
                    source,
                })?;
            }
        }
        outcome.map_err(|source| SyncError::Systemd { unit: unit.name().to_owned(), source })
    }

    /// Sends the allowed devices to systemd.
    pub(crate) fn sync_devices(&self, policy: &Policy) -> Result<(), SystemdError> {
        let Some((systemd, unit)) = self.unit() else { return Ok(()) };
        let told: Vec<Property> = properties::devices(policy).ok_or(SystemdError::DeviceRules)?;
        systemd.set(unit, &told)
    }

    pub(super) fn held(&self, knob: &Knob) -> Result<Option<KnobValue>, SyncError> {
        match self.read(knob) {
            Ok(text) => Ok(Some(knob.value(text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SyncError::Read { file: self.location(knob), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuShares, LimitsPatch, MemoryLimit};
    use rustix::io::Errno;

    use super::*;
    use crate::fake::FakeCgroup;
    use crate::limits::apply;
    pub(crate) use crate::limits::apply::{ApplyError, RecoveryOutcome};

    fn patch(shares: i64, memory: u64) -> LimitsPatch {
        LimitsPatch {
            cpu_shares: Some(CpuShares::new(shares).unwrap()),
            memory: Some(MemoryLimit::Bytes(Bytes(memory))),
            ..LimitsPatch::default()
        }
    }

    fn known(fs: &FakeCgroup, knob: &Knob) -> Option<String> {
        fs.known().get(knob).map(KnobValue::to_string)
    }

    #[test]
    fn written_values_are_sent_to_systemd() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        assert_eq!(known(&fs, &Knob::CPU_WEIGHT).unwrap(), "59");
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "1048576");
        assert_eq!(known(&fs, &Knob::CPU_MAX), None);
    }

    #[test]
    fn a_change_that_fails_halfway_is_not_sent() {
        let fs = FakeCgroup::v2();
        fs.fail_after(1, Errno::INVAL);
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap_err();
        assert!(fs.known().is_empty());
    }

    #[test]
    fn a_change_that_systemd_rejects_is_rolled_back() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        let before = fs.files();
        fs.ignore_writes();
        let error = apply::apply(&fs, &patch(2, 2 << 20)).unwrap_err();
        assert!(matches!(&error, ApplyError::NotTold { left, .. } if left.is_empty()), "{error:?}");
        assert_eq!(fs.files(), before);
    }

    #[test]
    fn the_outcome_of_an_interrupted_change_is_sent() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        let change = apply::prepare(&fs, &patch(2, 2 << 20)).unwrap();
        // Written, but not sent.
        change.writes.iter().for_each(|write| fs.write(&write.knob, write.want.text()).unwrap());
        assert!(matches!(apply::recover(&fs, &change).unwrap(), RecoveryOutcome::Finished(_)));
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "2097152");
        // Sent, then partly rolled back by a daemon that was killed too.
        let first = &change.writes[0];
        fs.write(&first.knob, first.had.text()).unwrap();
        assert_eq!(apply::recover(&fs, &change).unwrap(), RecoveryOutcome::Undone);
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "1048576");
        assert_eq!(known(&fs, &Knob::CPU_WEIGHT).unwrap(), "59");
    }

    #[test]
    fn nothing_is_sent_with_the_cgroupfs_driver() {
        let layout = crate::Layout::V2 { root: "/nonexistent".into() };
        let group = Cgroup::new(std::sync::Arc::new(layout), model::CgroupPath::new("/a.slice/b.scope").unwrap());
        group.sync(&Values::from([(Knob::MEMORY_MAX, Knob::MEMORY_MAX.value("nonsense"))])).unwrap();
    }
}
