//! Copies a program into sealed memory, so that no container can overwrite it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Copies `program` into sealed memory. A container cannot overwrite the program of a process
/// started from it through `/proc/PID/exe`; all processes started from one copy share its pages.
pub fn sealed(name: &str, mut program: impl Read) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // `EXEC` needs Linux 6.3: a host may make memory files not executable by default.
    let fd = match memfd_create(name, flags | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    let mut copy = File::from(fd);
    io::copy(&mut program, &mut copy)?;
    seal(&copy)?;
    Ok(OwnedFd::from(copy))
}

/// Seals the copy. The kernel returns EBUSY while it still references the pages just written; on a
/// busy machine this can take longer than the kernel waits itself.
fn seal(copy: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for _ in 0..TRIES {
        match fcntl_add_seals(copy, seals) {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(fcntl_add_seals(copy, seals)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_sealed_copy_cannot_be_written() {
        let copy = File::from(sealed("test", File::open("/proc/self/exe").unwrap()).unwrap());
        assert!(copy.metadata().unwrap().len() > 0);
        assert!((&copy).write_all(b"x").is_err());
    }
}
