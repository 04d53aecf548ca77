//! Memory that the allocator keeps.

/// Gives what is free back to the kernel. Takes a moment: for quiet times.
pub fn trim() {
    // SAFETY: malloc_trim has no preconditions; it only touches free memory, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}
