//! Memory of a process, from `/proc/PID/smaps` and `smaps_rollup`.

use std::path::Path;
use std::{fs, io};

/// Returns the process's proportional set size (PSS) in MB, with the mapped pages of its own program counted in full.
///
/// PSS divides pages of a file among all processes that map it. A benchmark, or any other command, that runs from
/// the daemon's file would take a part of the daemon's program text.
pub(super) fn with_program_in_full(pid: i32) -> io::Result<f64> {
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    Ok(sum_in_full(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, &program))
}

/// Adds up the PSS of all mappings in `smaps`, and the whole resident size of those of `program`.
fn sum_in_full(smaps: &str, program: &Path) -> f64 {
    let mut is_program = false;
    smaps.lines().fold(0.0, |sum, line| {
        if let Some(path) = mapped_path(line) {
            is_program = Path::new(path) == program;
        }
        let counted = if is_program { "Rss:" } else { "Pss:" };
        sum + kib(line, counted).unwrap_or_default()
    })
}

/// Returns the path in the first line of a mapping (empty without a file); None for all other lines.
fn mapped_path(line: &str) -> Option<&str> {
    let (addresses, mut rest) = line.split_once(' ')?;
    if addresses.ends_with(':') || !addresses.contains('-') {
        return None;
    }
    // Permissions, offset, device and inode. The path is padded with spaces.
    for _ in 0..4 {
        rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
    }
    Some(rest.trim_start())
}

/// Returns the proportional set size (PSS) in MB: shared pages count once in total.
pub(super) fn pss(pid: i32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(kib(&text, "Pss:").unwrap_or_default())
}

/// Returns the memory in MB that only this process maps.
pub(super) fn private(pid: i32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(["Private_Clean:", "Private_Dirty:"].iter().filter_map(|name| kib(&text, name)).sum())
}

/// Parses the number of KiB after `name`, and converts it to MB (10^6 bytes).
pub(super) fn kib(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_in_full_and_everything_else_by_its_share() {
        let smaps = "55-56 r-xp 00001000 fe:00 42                         /usr/bin/cri sp\n\
                     Size:   5000 kB\nRss:    4000 kB\nPss:    1000 kB\nPss_Dirty: 7 kB\nVmFlags: rd ex mr\n\
                     7f-80 r-xp 00000000 fe:00 43                         /lib/libc.so\nRss:    2000 kB\nPss:     500 kB\n\
                     90-91 rw-p 00000000 00:00 0 \nRss:     100 kB\nPss:     100 kB\n";
        let kib = |program| (sum_in_full(smaps, Path::new(program)) * 1e6 / 1024.0).round();
        assert_eq!((kib("/usr/bin/cri sp"), kib("/usr/bin/other")), (4600.0, 1600.0));
    }

    #[test]
    fn the_own_program_is_at_least_its_share() {
        let own = i32::try_from(std::process::id()).unwrap();
        let [full, share, private] = [with_program_in_full(own), pss(own), private(own)].map(Result::unwrap);
        assert!(full >= share * 0.9 && private > 0.1, "{full} {share} {private}");
    }

    #[test]
    fn sizes_are_converted_to_megabytes() {
        assert_eq!(kib("Rss: 1 kB\nPss:     2048 kB\n", "Pss:"), Some(2.097_152));
        assert_eq!(kib("Rss: 1 kB\n", "Pss:"), None);
    }
}
