//! Who came from whom.

use std::collections::HashSet;

/// Parent and session of a process, and whether it still runs or only waits to be reaped.
struct ProcStat {
    pid: i32,
    parent: i32,
    session: i32,
    alive: bool,
}

/// `root` and, among `all`, those that descend from it or belong to its session, as far as they are alive.
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

/// The parent of a process, if that is still there.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    read(pid).map(|stat| stat.parent)
}

fn read(pid: i32) -> Option<ProcStat> {
    // The name need not be text.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

/// The name in the second field may hold anything, closing brackets too: count from its last one.
fn parse(pid: i32, stat: &str) -> Option<ProcStat> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let alive = !matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(ProcStat { pid, parent, session, alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_brackets_does_not_confuse() {
        let ProcStat { pid, parent, session, alive } = parse(7, "7 (a) b) (c)) S 3 4 5 0 -1").unwrap();
        assert_eq!((pid, parent, session, alive), (7, 3, 5, true));
        assert!(!parse(7, "7 (a) Z 3 4 5 0 -1").unwrap().alive);
    }

    #[test]
    fn a_process_is_in_its_own_family() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(descendants(own, &[own, 1]).contains(&own));
        assert!(!descendants(own, &[own, 1]).contains(&1));
    }
}
