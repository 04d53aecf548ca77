//! Passes a descriptor to a program under a fixed number.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Lets the program of `command` have `fd` as descriptor `number`, and none above it. The descriptor
/// is closed here with the command.
pub fn pass_fd(command: &mut Command, fd: OwnedFd, number: RawFd) -> io::Result<()> {
    // The child overwrites `number`: it must not be the pipe through which `spawn` reports a failed
    // exec. As long as the command exists, either another descriptor or this one has the number.
    // SAFETY: fcntl with this command only takes numbers.
    let reserved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) };
    if reserved < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above created this descriptor, which has no other owner.
    let reserved = unsafe { OwnedFd::from_raw_fd(reserved) };
    let pass = move || {
        let _held = &reserved;
        let done = if fd.as_raw_fd() == number {
            // SAFETY: fcntl with this command only takes numbers.
            unsafe { libc::fcntl(number, libc::F_SETFD, 0) }
        } else {
            // SAFETY: in the child, before exec, only the program uses the number.
            unsafe { libc::dup2(fd.as_raw_fd(), number) }
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptors stay open until exec.
        let done = unsafe { libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: the closure runs after fork, only makes system calls that are async-signal-safe,
    // and neither allocates nor locks.
    unsafe { command.pre_exec(pass) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn a_program_has_the_descriptor_under_its_number() {
        let (mut read, write) = io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo passed >&7"]);
        pass_fd(&mut command, write.into(), 7).unwrap();
        assert!(command.status().unwrap().success());
        drop(command);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "passed\n");
    }

    #[test]
    fn a_failed_exec_is_reported() {
        let (_read, mut write) = io::pipe().unwrap();
        write.flush().unwrap();
        let mut command = Command::new("/nonexistent/program");
        pass_fd(&mut command, write.into(), 3).unwrap();
        assert_eq!(command.spawn().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
