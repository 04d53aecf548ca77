//! Fills a cgroup of the kernel with anonymous memory or page cache.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use crate::Cgroup;
use crate::tests::{Started, shell_in};

/// Starts a shell that holds `mib` MiB of anonymous memory, and waits until it has them.
pub(crate) fn hold(group: &Cgroup, mib: u64) -> Started {
    let script = format!("x=$(head -c {} /dev/zero | tr '\\0' a); echo holding; sleep 100000; echo $x", mib << 20);
    let mut started = Started::by(shell_in(group, &script).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(started.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "holding\n");
    started
}

/// Reads at least `mib` MiB of files in `group`, which is then charged for their pages.
pub(crate) fn read_files_into(group: &Cgroup, mib: u64) {
    // Libraries of the build: a new file could be on a tmpfs, whose pages cannot be reclaimed.
    let built = fs::read_dir(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let mut files: Vec<(u64, PathBuf)> = built
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "rlib"))
        .map(|entry| (entry.metadata().unwrap().len(), entry.path()))
        .collect();
    files.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let mut left = mib << 20;
    for (length, path) in files {
        // A page is charged to the first cgroup that reads it.
        let file = fs::File::open(&path).unwrap();
        file.sync_data().ok();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(shell_in(group, &format!("cat {} > /dev/null", path.display())).status().unwrap().success());
        left = left.saturating_sub(length);
        if left == 0 {
            return;
        }
    }
    panic!("files of the build: {left} bytes less than {mib} MiB");
}
