//! Finds the descendants of a process in `/proc`, to kill them at a timeout.

use std::collections::HashSet;

/// Parent and session of a process, and whether it runs or is a zombie.
struct ProcStat {
    pid: i32,
    parent: i32,
    session: i32,
    alive: bool,
    /// Its namespaces may be released already, although it is not a zombie yet.
    exiting: bool,
}

/// The kernel's flag `PF_EXITING`.
const EXITING: u32 = 4;

/// Returns `root` and those of `all` that descend from it or belong to its session and have not
/// exited.
pub fn descendants(root: i32, all: &[i32]) -> Vec<i32> {
    let mut stat: Vec<ProcStat> = all.iter().filter_map(|pid| read(*pid)).collect();
    let mut family = HashSet::from([root]);
    loop {
        let before = family.len();
        for ProcStat { pid, parent, session, .. } in &stat {
            if *session == root || family.contains(parent) {
                family.insert(*pid);
            }
        }
        if family.len() == before {
            stat.retain(|k| k.alive && family.contains(&k.pid));
            return stat.into_iter().map(|k| k.pid).collect();
        }
    }
}

/// Returns the parent of a process, if the process exists.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    read(pid).map(|stat| stat.parent)
}

/// Returns whether a process has exited or is exiting.
#[must_use]
pub fn is_ending(pid: i32) -> bool {
    read(pid).is_none_or(|stat| stat.exiting || !stat.alive)
}

fn read(pid: i32) -> Option<ProcStat> {
    // The name may not be UTF-8.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

// The name in the second field may contain anything, also closing brackets: fields count from the
// last one.
fn parse(pid: i32, stat: &str) -> Option<ProcStat> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let alive = !matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    // Between them are the terminal and its foreground group.
    let flags: u32 = fields.nth(2)?.parse().ok()?;
    Some(ProcStat { pid, parent, session, alive, exiting: flags & EXITING != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_is_parsed() {
        let ProcStat { pid, parent, session, alive, exiting } = parse(7, "7 (a) b) (c)) S 3 4 5 0 -1 4194304").unwrap();
        assert_eq!((pid, parent, session, alive, exiting), (7, 3, 5, true, false));
        assert!(!parse(7, "7 (a) Z 3 4 5 0 -1 4194304").unwrap().alive);
        assert!(parse(7, "7 (a) R 3 4 5 0 -1 4194308").unwrap().exiting);
    }

    #[test]
    fn descendants_include_the_process_itself() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!is_ending(own) && is_ending(i32::MAX));
        assert!(descendants(own, &[own, 1]).contains(&own));
        assert!(!descendants(own, &[own, 1]).contains(&1));
    }
}
