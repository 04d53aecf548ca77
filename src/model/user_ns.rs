//! Maps ids of a user namespace to ids of the host.

use std::fmt::Write as _;

use crate::container::IdMapping;
use crate::security::UserNs;

/// The kernel's maximum number of lines in `uid_map` and `gid_map`.
pub const ID_LINES_MAX: usize = 340;
/// In bytes. The kernel takes all lines in one write, which must be shorter than a page (4096 bytes
/// at least).
pub const ID_TEXT_MAX: usize = 4095;

impl UserNs {
    /// Returns the host's uid of the container's uid `inside`; `None` if it is not mapped.
    #[must_use]
    pub fn uid(&self, inside: u32) -> Option<u32> {
        outside(&self.uids, inside)
    }

    /// Returns the host's gid of the container's gid `inside`; `None` if it is not mapped.
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

/// Formats the lines for `/proc/PID/uid_map` and `/proc/PID/gid_map`.
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
    fn ids_are_mapped_by_the_line_that_contains_them() {
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
