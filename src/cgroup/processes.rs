//! The processes in a cgroup and in those below it: lists, freezes, thaws and kills them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::{Cgroup, CgroupError};
use crate::cgroupfs::{children, gone, write_file};
use crate::layout::Version;

/// How long one round of killing waits for the processes to freeze: it only helps against forking, nothing rests on it.
const FREEZE_BEFORE_KILL: Duration = Duration::from_millis(50);

impl Cgroup {
    /// Every process in this cgroup and below it, in whichever tree.
    ///
    /// A process that is only half in, because it joins one tree after the other, counts too. None
    /// where the cgroup is gone.
    pub fn procs(&self) -> Result<BTreeSet<NonZeroU32>, CgroupError> {
        let mut pids = BTreeSet::new();
        self.dirs().try_for_each(|dir| collect(&dir, &mut pids))?;
        Ok(pids)
    }

    /// Whether no process lives in this cgroup or below it; true where it is gone.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        match self.layout().version() {
            Version::V1 => Ok(self.procs()?.is_empty()),
            Version::V2 => Ok(self.event("populated")? != Some(true)),
        }
    }

    /// Ends every process in this cgroup and below it, also those that fork faster than they are listed.
    ///
    /// Leaves the cgroup thawed. Fails when some are still there after `within`.
    pub fn kill_all(&self, within: Duration) -> Result<(), CgroupError> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(200);
        for round in 0.. {
            let found = self.procs()?;
            self.refuse_own(&found)?;
            let empty = match self.layout().version() {
                Version::V1 => found.is_empty(),
                Version::V2 => self.is_empty()?,
            };
            if empty {
                break;
            }
            if start.elapsed() >= within {
                self.thaw_all()?;
                return Err(CgroupError::TooSlow { path: self.path().clone(), wanted: "empty", after: within });
            }
            self.kill_round(round)?;
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        // No process is left, but a cgroup that stays frozen would freeze processes that join later.
        self.thaw_all()
    }

    fn kill_round(&self, round: u32) -> Result<(), CgroupError> {
        // v2 ends a whole subtree at once. On a hybrid host the same file catches those that have joined that tree.
        if let Some(kill) = self.unified_dir().map(|dir| dir.join("cgroup.kill"))
            && kill.exists()
        {
            match write_file(&kill, "1") {
                Err(CgroupError::Write { source, .. }) if gone(&source) => {}
                outcome => outcome?,
            }
            // Nearly all processes are frozen then: the next round freezes the others, and frozen ones exit later.
            if self.layout().version() == Version::V2 || round == 0 {
                return self.thaw_all();
            }
        }
        // Frozen processes neither fork nor exit, so the list stays true while it is worked through.
        match self.freeze(FREEZE_BEFORE_KILL) {
            Ok(()) | Err(CgroupError::NoFreezer(_) | CgroupError::TooSlow { .. }) => {}
            Err(CgroupError::Write { source, .. } | CgroupError::Read { source, .. }) if gone(&source) => {}
            Err(e) => return Err(e),
        }
        for pid in self.procs()? {
            let Some(target) = i32::try_from(pid.get()).ok().and_then(Pid::from_raw) else { continue };
            match kill_process(target, Signal::KILL) {
                // Gone on its own in the meantime.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(CgroupError::Kill { pid, source: e.into() }),
            }
        }
        self.thaw_all()
    }

    /// Stops every process in this cgroup and below it, and waits until they stand still.
    pub fn freeze(&self, within: Duration) -> Result<(), CgroupError> {
        self.refuse_own(&self.procs()?)?;
        let (file, value, _) = self.freezer()?;
        write_file(&file, value)?;
        let start = Instant::now();
        while !self.is_frozen()? {
            if start.elapsed() >= within {
                return Err(CgroupError::TooSlow { path: self.path().clone(), wanted: "frozen", after: within });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A process that freezes its own cgroup could never thaw it.
    fn refuse_own(&self, found: &BTreeSet<NonZeroU32>) -> Result<(), CgroupError> {
        let own = found.iter().any(|pid| pid.get() == std::process::id());
        if own { Err(CgroupError::Own(self.path().clone())) } else { Ok(()) }
    }

    /// Lets the processes of this cgroup go on; what froze itself below stays as it is.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        let (file, _, value) = self.freezer()?;
        write_file(&file, value)
    }

    /// Whether every process has come to a standstill.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        match self.layout().version() {
            Version::V1 => {
                let (file, ..) = self.freezer()?;
                let state = fs::read_to_string(&file).map_err(|source| CgroupError::Read { path: file, source })?;
                Ok(state.trim() == "FROZEN")
            }
            Version::V2 => Ok(self.event("frozen")? == Some(true)),
        }
    }

    /// Thaws this cgroup and all below it, as far as they are there and can freeze at all.
    pub(crate) fn thaw_all(&self) -> Result<(), CgroupError> {
        match self.freezer() {
            Ok((file, _, value)) => match (file.parent(), file.file_name().and_then(|name| name.to_str())) {
                (Some(dir), Some(name)) => thaw_tree(dir, name, value),
                (None, _) | (_, None) => Ok(()),
            },
            Err(_no_freezer) => Ok(()),
        }
    }

    /// The file to freeze with, and what to write for freezing and thawing.
    fn freezer(&self) -> Result<(PathBuf, &'static str, &'static str), CgroupError> {
        let dir = self.dir_of("freezer").ok_or_else(|| CgroupError::NoFreezer(self.path().clone()))?;
        Ok(match self.layout().version() {
            Version::V1 => (dir.join("freezer.state"), "FROZEN", "THAWED"),
            Version::V2 => (dir.join("cgroup.freeze"), "1", "0"),
        })
    }

    /// A flag of v2's `cgroup.events`, which counts what is below too; `None` where the cgroup is gone.
    fn event(&self, name: &str) -> Result<Option<bool>, CgroupError> {
        let Some(path) = self.unified_dir().map(|dir| dir.join("cgroup.events")) else { return Ok(None) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if gone(&e) => return Ok(None),
            Err(source) => return Err(CgroupError::Read { path, source }),
        };
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.find(|(key, _)| *key == name).map(|(_, value)| value == "1"))
    }
}

fn collect(dir: &Path, pids: &mut BTreeSet<NonZeroU32>) -> Result<(), CgroupError> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        // 0 stands for a process that our PID namespace cannot see.
        Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<NonZeroU32>().ok())),
        // The processes of a threaded cgroup are listed further up.
        Err(e) if gone(&e) || Errno::from_io_error(&e) == Some(Errno::OPNOTSUPP) => {}
        Err(source) => return Err(CgroupError::Read { path, source }),
    }
    children(dir)?.iter().try_for_each(|child| collect(child, pids))
}

fn thaw_tree(dir: &Path, file: &str, value: &str) -> Result<(), CgroupError> {
    match write_file(&dir.join(file), value) {
        Err(CgroupError::Write { source, .. }) if gone(&source) => {}
        outcome => outcome?,
    }
    children(dir)?.iter().try_for_each(|child| thaw_tree(child, file, value))
}
