//! Telling systemd what is in force, without letting it change that.

use std::io;
use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};

use super::{Property, SystemdError, properties};
use crate::cgroup::Cgroup;
use crate::devices::Policy;
use crate::limits::knob::{CgroupFs as _, Knob, Unreadable, Values};
use crate::limits::value::KnobValue;

/// Why systemd could not be told; what is in force is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("telling systemd the limits of {unit}")]
    Systemd { unit: String, source: SystemdError },
    #[error("telling systemd the limits of {unit}")]
    Unreadable { unit: String, source: Unreadable },
    #[error("reading {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("writing {value:?} to {file}, which systemd changed")]
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
    /// Tells systemd of files that were written, with the values that they have now, so that it writes the same when it
    /// next reloads. To take that back, it is told the old values.
    ///
    /// systemd writes what it is told at once, rounded as it sees fit: afterwards every file is put back to what it
    /// held. With the cgroupfs driver, and for files that systemd does not know, there is nobody to tell.
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
        // Also after a failure: some of it may have been done.
        for (knob, value) in &now {
            let kept = match self.held(knob)? {
                Some(found) => knob.same(&found, value),
                // systemd takes a controller away that nobody needs: no set is held there as well as with it.
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

    /// Tells systemd which devices may be used.
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
    fn what_a_change_writes_is_told() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        assert_eq!(known(&fs, &Knob::CPU_WEIGHT).unwrap(), "59");
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "1048576");
        assert_eq!(known(&fs, &Knob::CPU_MAX), None);
    }

    #[test]
    fn a_change_that_was_refused_halfway_was_never_told() {
        let fs = FakeCgroup::v2();
        fs.fail_after(1, Errno::INVAL);
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap_err();
        assert!(fs.known().is_empty());
    }

    #[test]
    fn a_change_that_systemd_cannot_be_told_of_is_taken_back() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        let before = fs.files();
        fs.ignore_writes();
        let error = apply::apply(&fs, &patch(2, 2 << 20)).unwrap_err();
        assert!(matches!(&error, ApplyError::NotTold { left, .. } if left.is_empty()), "{error:?}");
        assert_eq!(fs.files(), before);
    }

    #[test]
    fn whatever_becomes_of_a_change_that_was_cut_off_is_told() {
        let fs = FakeCgroup::v2();
        apply::apply(&fs, &patch(512, 1 << 20)).unwrap();
        let change = apply::prepare(&fs, &patch(2, 2 << 20)).unwrap();
        // Written, and not told.
        change.writes.iter().for_each(|write| fs.write(&write.knob, write.want.text()).unwrap());
        assert!(matches!(apply::recover(&fs, &change).unwrap(), RecoveryOutcome::Finished(_)));
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "2097152");
        // Told, and then half undone by somebody who was cut off too.
        let first = &change.writes[0];
        fs.write(&first.knob, first.had.text()).unwrap();
        assert_eq!(apply::recover(&fs, &change).unwrap(), RecoveryOutcome::Undone);
        assert_eq!(known(&fs, &Knob::MEMORY_MAX).unwrap(), "1048576");
        assert_eq!(known(&fs, &Knob::CPU_WEIGHT).unwrap(), "59");
    }

    #[test]
    fn with_the_cgroupfs_driver_there_is_nobody_to_tell() {
        let layout = crate::Layout::V2 { root: "/nonexistent".into() };
        let group = Cgroup::new(std::sync::Arc::new(layout), model::CgroupPath::new("/a.slice/b.scope").unwrap());
        group.sync(&Values::from([(Knob::MEMORY_MAX, Knob::MEMORY_MAX.value("nonsense"))])).unwrap();
    }
}
