//! The processes in a cgroup and in those below it: lists, freezes, thaws and kills them; its OOM kills.
//!
//! The daemon uses it through `cgroup`. Each shim links it too, so it has few dependencies and stays small.
#![forbid(unsafe_code)]

mod error;
pub mod files;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

pub use error::ProcsError;
use error::{ignore_gone, read_error};
use files::{children, gone, write_once};

/// How long a round of [`CgroupDirs::kill_all`] waits until the processes are frozen. Freezing only slows down forking.
const FREEZE_BEFORE_KILL: Duration = Duration::from_millis(50);

/// The directories of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupDirs {
    /// One for each hierarchy.
    pub all: Vec<PathBuf>,
    /// The one of version 2, which a hybrid host has too.
    pub v2: Option<PathBuf>,
    pub freezer: Option<Freezer>,
}

/// The directory in which a cgroup is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Freezer {
    V1(PathBuf),
    V2(PathBuf),
}

/// The state of a freezer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezerState {
    Thawed,
    /// Some processes may still run. One that joins will be frozen.
    Freezing,
    Frozen,
}

impl CgroupDirs {
    /// Finds the directories of the cgroup with these `cgroup.procs` files.
    pub fn of_join_files(files: &[PathBuf]) -> Self {
        let all: Vec<PathBuf> = files.iter().filter_map(|file| file.parent()).map(Path::to_owned).collect();
        let with = |name| all.iter().find(|dir| dir.join(name).exists()).cloned();
        let v2 = with("cgroup.events");
        let freezer = match &v2 {
            Some(dir) if all.len() == 1 => Some(Freezer::V2(dir.clone())),
            Some(_) | None => with("freezer.state").map(Freezer::V1),
        };
        Self { all, v2, freezer }
    }

    /// Returns every process in this cgroup and below it, in any hierarchy: also one that has joined only some of them.
    /// A cgroup that does not exist has none.
    pub fn procs(&self) -> Result<BTreeSet<NonZeroU32>, ProcsError> {
        let mut pids = BTreeSet::new();
        self.all.iter().try_for_each(|dir| collect(dir, &mut pids))?;
        Ok(pids)
    }

    /// Returns whether no process is in this cgroup or below it, or it does not exist.
    pub fn is_empty(&self) -> Result<bool, ProcsError> {
        if self.is_v2() { Ok(self.event("populated")? != Some(true)) } else { Ok(self.procs()?.is_empty()) }
    }

    /// Kills every process in this cgroup and below it, also those that fork faster than they are listed.
    ///
    /// Leaves the cgroup thawed. Fails if processes are left after `within`.
    pub fn kill_all(&self, within: Duration) -> Result<(), ProcsError> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(200);
        for round in 0.. {
            let found = self.procs()?;
            refuse_own(&found)?;
            if if self.is_v2() { self.is_empty()? } else { found.is_empty() } {
                break;
            }
            if start.elapsed() >= within {
                self.thaw_all()?;
                return Err(ProcsError::TooSlow { wanted: "empty", after: within });
            }
            self.kill_round(round)?;
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        // No process is left, but a cgroup that stays frozen would freeze processes that join later.
        self.thaw_all()
    }

    fn kill_round(&self, round: u32) -> Result<(), ProcsError> {
        // v2 kills a whole subtree at once. On a hybrid host the same file catches those that have joined that tree.
        if let Some(kill) = self.v2.as_ref().map(|dir| dir.join("cgroup.kill"))
            && kill.exists()
        {
            ignore_gone(write(&kill, "1"))?;
            // Nearly all processes are killed then: the next round freezes the others, and frozen ones exit later.
            if self.is_v2() || round == 0 {
                return self.thaw_all();
            }
        }
        // Frozen processes neither fork nor exit, so the list stays true while it is worked through.
        match self.freeze(FREEZE_BEFORE_KILL) {
            Err(ProcsError::NoFreezer | ProcsError::TooSlow { .. }) => {}
            outcome => ignore_gone(outcome)?,
        }
        for pid in self.procs()? {
            let Some(target) = i32::try_from(pid.get()).ok().and_then(Pid::from_raw) else { continue };
            match kill_process(target, Signal::KILL) {
                // It has exited meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(ProcsError::Kill { pid, source: e.into() }),
            }
        }
        self.thaw_all()
    }

    /// Freezes every process in this cgroup and below it, and waits until they are frozen.
    pub fn freeze(&self, within: Duration) -> Result<(), ProcsError> {
        refuse_own(&self.procs()?)?;
        let freezer = self.freezer()?;
        write(&freezer.file(), freezer.word(true))?;
        let start = Instant::now();
        while self.freezer_state()? != FreezerState::Frozen {
            if start.elapsed() >= within {
                return Err(ProcsError::TooSlow { wanted: "frozen", after: within });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Thaws this cgroup; those below that are frozen themselves stay frozen.
    pub fn thaw(&self) -> Result<(), ProcsError> {
        let freezer = self.freezer()?;
        write(&freezer.file(), freezer.word(false))
    }

    /// Thaws this cgroup and all below it, if they exist and the host has a freezer.
    pub fn thaw_all(&self) -> Result<(), ProcsError> {
        self.freezer.as_ref().map_or(Ok(()), |freezer| thaw_tree(freezer.dir(), freezer))
    }

    /// Returns the state of this cgroup, which an ancestor may have frozen.
    pub fn freezer_state(&self) -> Result<FreezerState, ProcsError> {
        let freezer = self.freezer()?;
        let path = freezer.file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if matches!(freezer, Freezer::V2(_)) && gone(&e) => return Ok(FreezerState::Thawed),
            Err(source) => return Err(ProcsError::Read { path, source }),
        };
        Ok(match (freezer, text.trim()) {
            (Freezer::V1(_), "FROZEN") => FreezerState::Frozen,
            (Freezer::V1(_), "FREEZING") => FreezerState::Freezing,
            (Freezer::V2(_), _) if self.event("frozen")? == Some(true) => FreezerState::Frozen,
            (Freezer::V2(_), "1") => FreezerState::Freezing,
            (Freezer::V1(_) | Freezer::V2(_), _) => FreezerState::Thawed,
        })
    }

    fn freezer(&self) -> Result<&Freezer, ProcsError> {
        self.freezer.as_ref().ok_or(ProcsError::NoFreezer)
    }

    /// Whether the host has no hierarchy of version 1.
    fn is_v2(&self) -> bool {
        self.v2.is_some() && self.all.len() == 1
    }

    /// Returns a flag of v2's `cgroup.events`, which counts all below too; `None` if the cgroup does not exist.
    fn event(&self, name: &str) -> Result<Option<bool>, ProcsError> {
        let Some(path) = self.v2.as_ref().map(|dir| dir.join("cgroup.events")) else { return Ok(None) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if gone(&e) => return Ok(None),
            Err(source) => return Err(ProcsError::Read { path, source }),
        };
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.find(|(key, _)| *key == name).map(|(_, value)| value == "1"))
    }
}

impl Freezer {
    fn dir(&self) -> &Path {
        match self {
            Self::V1(dir) | Self::V2(dir) => dir,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::V1(_) => "freezer.state",
            Self::V2(_) => "cgroup.freeze",
        }
    }

    fn file(&self) -> PathBuf {
        self.dir().join(self.name())
    }

    /// Returns the text that freezes or thaws.
    fn word(&self, frozen: bool) -> &'static str {
        match (self, frozen) {
            (Self::V1(_), true) => "FROZEN",
            (Self::V1(_), false) => "THAWED",
            (Self::V2(_), true) => "1",
            (Self::V2(_), false) => "0",
        }
    }
}

/// Returns the number of OOM kills that `file` has: `memory.events` or `memory.oom_control`. `None` if it has none.
pub fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Adds the processes in the cgroup `dir` of one hierarchy and below it to `pids`.
pub fn collect(dir: &Path, pids: &mut impl Extend<NonZeroU32>) -> Result<(), ProcsError> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        // 0 stands for a process that is not visible in this PID namespace.
        Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<NonZeroU32>().ok())),
        // The processes of a threaded cgroup are listed further up.
        Err(e) if gone(&e) || Errno::from_io_error(&e) == Some(Errno::OPNOTSUPP) => {}
        Err(source) => return Err(ProcsError::Read { path, source }),
    }
    let below = children(dir).map_err(read_error(dir))?;
    below.iter().try_for_each(|child| collect(child, pids))
}

/// A process that freezes its own cgroup could never thaw it.
fn refuse_own(found: &BTreeSet<NonZeroU32>) -> Result<(), ProcsError> {
    let own = found.iter().any(|pid| pid.get() == std::process::id());
    if own { Err(ProcsError::Own) } else { Ok(()) }
}

fn thaw_tree(dir: &Path, freezer: &Freezer) -> Result<(), ProcsError> {
    ignore_gone(write(&dir.join(freezer.name()), freezer.word(false)))?;
    let below = children(dir).map_err(read_error(dir))?;
    below.iter().try_for_each(|child| thaw_tree(child, freezer))
}

fn write(path: &Path, value: &'static str) -> Result<(), ProcsError> {
    write_once(path, value).map_err(|source| ProcsError::Write { path: path.to_owned(), value, source })
}
