//! Loads a compiled seccomp filter for the calling thread.

use std::io;

/// One instruction of a classic BPF program, with the kernel's layout.
pub type Instruction = libc::sock_filter;

/// Parses a filter from bytes as they are stored and sent: eight per instruction, in native byte
/// order.
pub fn from_bytes(bytes: &[u8]) -> io::Result<Vec<Instruction>> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || chunks.is_empty() {
        return Err(io::Error::other("a seccomp filter must be a whole number of 8-byte instructions"));
    }
    let read = |c: &[u8; 8]| Instruction {
        code: u16::from_ne_bytes([c[0], c[1]]),
        jt: c[2],
        jf: c[3],
        k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
    };
    Ok(chunks.iter().map(read).collect())
}

/// Loads the filter for this thread and all its children. Needs `CAP_SYS_ADMIN` or no_new_privs.
pub fn load(filter: &[Instruction]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: `program` points to `len` instructions that outlive the call; the kernel copies and
    // checks them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
