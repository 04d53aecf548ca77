//! Settings of the C allocator that return freed memory to the kernel.

/// Sets the mmap threshold permanently: a freed block of `bytes` or more is returned to the kernel
/// immediately.
///
/// By default the allocator raises the threshold to the largest freed block, and keeps the holes of
/// such blocks in the arena of each thread. Returns false if the value is not accepted.
pub fn return_from(bytes: i32) -> bool {
    // SAFETY: mallopt has no preconditions; it only sets a number, protected by the allocator's
    // lock.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) == 1 }
}

/// Limits the number of arenas for all threads permanently: each has its own fragmentation. Returns
/// false if the value is not accepted.
pub fn pools(count: i32) -> bool {
    // SAFETY: mallopt has no preconditions; it only sets a number, protected by the allocator's
    // lock.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, count) == 1 }
}

/// Returns free memory to the kernel. Takes some time, so call it while idle.
pub fn trim() {
    // SAFETY: malloc_trim has no preconditions; it only accesses free memory, protected by the
    // allocator's locks.
    unsafe { libc::malloc_trim(0) };
}
