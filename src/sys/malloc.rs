//! Memory that the allocator keeps.

/// Lets every block of `bytes` or more be the kernel's again as soon as it is freed, for good.
///
/// Left to itself the allocator raises that bound to the largest block it has seen, and keeps the holes that such
/// blocks leave behind, in each thread's memory. False if it takes no such number.
pub fn return_from(bytes: i32) -> bool {
    // SAFETY: mallopt has no preconditions; it only sets a number, under the allocator's own lock.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) == 1 }
}

/// Lets all threads take their memory from at most `count` pools, for good: each keeps holes of its own. False if the
/// allocator takes no such number.
pub fn pools(count: i32) -> bool {
    // SAFETY: mallopt has no preconditions; it only sets a number, under the allocator's own lock.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, count) == 1 }
}

/// Gives what is free back to the kernel. Takes a moment: for quiet times.
pub fn trim() {
    // SAFETY: malloc_trim has no preconditions; it only touches free memory, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}
