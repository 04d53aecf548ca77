//! The part of bpf(2) for device control in cgroup v2: load a program, attach, list and detach it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_DETACH: libc::c_long = 9;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const PROG_QUERY: libc::c_long = 16;

const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const F_ALLOW_MULTI: u32 = 1 << 1;

/// The kernel attaches at most this many programs of one kind to a cgroup.
const ATTACHED_MAX: u32 = 64;

/// One instruction as the kernel reads it (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u8,
    /// The destination register in the low half on little-endian machines, the source in the high half.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

impl Instruction {
    /// Creates an instruction; registers are 0 to 10.
    pub fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        let registers =
            if cfg!(target_endian = "little") { destination | source << 4 } else { destination << 4 | source };
        Self { code, registers, offset, immediate }
    }
}

#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
struct AttachAttr {
    target_fd: RawFd,
    attach_bpf_fd: RawFd,
    attach_type: u32,
    attach_flags: u32,
}

#[repr(C)]
struct QueryAttr {
    target_fd: RawFd,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    reserved: u32,
}

#[repr(C)]
struct ByIdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
    reserved: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attr` must have the layout of `bpf_attr` for `command`, and every address in it must be valid
/// for the access that `command` makes.
unsafe fn bpf<A>(command: libc::c_long, attr: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a live, exclusively borrowed value of the given size; the caller guarantees
    // its content.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<A>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn descriptor(answer: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(answer).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel has just created this descriptor, and no other code has it; bpf(2) sets
    // close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a pointer as the kernel expects it, with exposed provenance.
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Loads a device program into the kernel, which verifies it; it is freed with the last descriptor
/// and cgroup that use it.
pub fn load_device_program(program: &[Instruction]) -> io::Result<OwnedFd> {
    let insn_cnt = u32::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let mut attr = LoadAttr {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt,
        insns: address(program.as_ptr()),
        license: address(c"Apache-2.0".as_ptr()),
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: the attribute is that of this command; program and licence outlive the call and are
    // only read.
    let answer = unsafe { bpf(PROG_LOAD, &mut attr) }?;
    descriptor(answer)
}

/// Attaches `program` to the cgroup with the directory `cgroup`, in addition to others: all must
/// allow an access.
pub fn attach_device_program(cgroup: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attr = AttachAttr {
        target_fd: cgroup.as_fd().as_raw_fd(),
        attach_bpf_fd: program.as_fd().as_raw_fd(),
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: F_ALLOW_MULTI,
    };
    // SAFETY: the attribute is that of this command and has no address.
    unsafe { bpf(PROG_ATTACH, &mut attr) }.map(drop)
}

/// Detaches `program` from the cgroup with the directory `cgroup`.
pub fn detach_device_program(cgroup: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attr = AttachAttr {
        target_fd: cgroup.as_fd().as_raw_fd(),
        attach_bpf_fd: program.as_fd().as_raw_fd(),
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: 0,
    };
    // SAFETY: the attribute is that of this command and has no address.
    unsafe { bpf(PROG_DETACH, &mut attr) }.map(drop)
}

/// Returns the device programs attached to this cgroup, without those of its parents.
pub fn device_programs(cgroup: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut ids = [0_u32; ATTACHED_MAX as usize];
    let mut attr = QueryAttr {
        target_fd: cgroup.as_fd().as_raw_fd(),
        attach_type: ATTACH_CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: address(ids.as_mut_ptr().cast_const()),
        prog_cnt: ATTACHED_MAX,
        reserved: 0,
    };
    // SAFETY: the attribute is that of this command; `ids` has space for the `prog_cnt` numbers
    // that the kernel may write.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    ids.iter().zip(0..attr.prog_cnt).map(|(id, _)| program_by_id(*id)).collect()
}

fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = ByIdAttr { id, next_id: 0, open_flags: 0, reserved: 0 };
    // SAFETY: the attribute is that of this command and has no address.
    let answer = unsafe { bpf(PROG_GET_FD_BY_ID, &mut attr) }?;
    descriptor(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_eight_bytes_in_kernel_order() {
        assert_eq!(size_of::<Instruction>(), 8);
        let jump = Instruction::new(0x55, 2, 3, -1, 7);
        assert_eq!(jump.registers, if cfg!(target_endian = "little") { 0x32 } else { 0x23 });
    }

    #[test]
    fn the_attributes_have_the_kernels_size() {
        assert_eq!(size_of::<LoadAttr>(), 48);
        assert_eq!(size_of::<AttachAttr>(), 16);
        assert_eq!(size_of::<QueryAttr>(), 32);
    }

    #[test]
    fn a_program_without_an_exit_is_refused_by_the_kernel_or_not_permitted() {
        let answer = load_device_program(&[Instruction::new(0xb7, 0, 0, 0, 1)]);
        assert!(answer.is_err());
    }
}
