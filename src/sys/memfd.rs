//! A program in memory that nobody can change any more.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Copies `program` into sealed memory. A process started from it cannot have its program overwritten through
/// `/proc/PID/exe`, whatever a container does; all processes started from one copy share its pages.
pub fn sealed(name: &str, mut program: File) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Asked for where the kernel knows the flag (6.3): a host may make memory not executable by default.
    let fd = match memfd_create(name, flags | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    let mut copy = File::from(fd);
    io::copy(&mut program, &mut copy)?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(OwnedFd::from(copy))
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
