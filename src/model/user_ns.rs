//! Ids inside of a user namespace and outside of it.

use std::fmt::Write as _;

use crate::container::IdMapping;
use crate::security::UserNs;

/// The most lines of mappings that the kernel keeps for a user namespace.
pub const ID_LINES_MAX: usize = 340;
/// The kernel takes the lines in one write, which has to be shorter than one page, whatever its pages are.
pub const ID_TEXT_MAX: usize = 4095;

impl UserNs {
    /// Who the container's user `inside` is on the host; none where it is nobody.
    #[must_use]
    pub fn uid(&self, inside: u32) -> Option<u32> {
        outside(&self.uids, inside)
    }

    /// What the container's group `inside` is on the host; none where it is nobody's.
    #[must_use]
    pub fn gid(&self, inside: u32) -> Option<u32> {
        outside(&self.gids, inside)
    }
}

fn outside(lines: &[IdMapping], inside: u32) -> Option<u32> {
    lines.iter().find_map(|line| {
        let offset = inside.checked_sub(line.container)?;
        if offset < line.length { line.host.checked_add(offset) } else { None }
    })
}

/// The lines as `/proc/PID/uid_map` and `/proc/PID/gid_map` take them.
#[must_use]
pub fn id_map_text(lines: &[IdMapping]) -> String {
    let mut text = String::new();
    for IdMapping { host, container, length } in lines {
        let written = writeln!(text, "{container} {host} {length}");
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_the_line_that_has_them() {
        let lines = vec![
            IdMapping { host: 65536, container: 0, length: 1000 },
            IdMapping { host: 4_294_967_293, container: 5000, length: 2 },
        ];
        let spaces = UserNs { uids: lines.clone(), gids: lines[1..].to_vec() };
        let cases = [(0, Some(65536)), (999, Some(66535)), (1000, None), (4999, None), (5001, Some(u32::MAX - 1))];
        for (inside, outside) in cases {
            assert_eq!(spaces.uid(inside), outside, "{inside}");
        }
        assert_eq!((spaces.uid(5002), spaces.gid(0), spaces.gid(5000)), (None, None, Some(4_294_967_293)));
        assert_eq!(id_map_text(&lines), "0 65536 1000\n5000 4294967293 2\n");
    }
}
