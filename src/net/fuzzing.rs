//! Doors to what reads the kernel's and plugins' bytes, for the fuzzer in `tests/fuzz`. Not part of
//! what ships.

/// Parses `data` as responses of the kernel over netlink.
pub fn netlink(data: &[u8]) {
    crate::bridge::fuzzing::netlink(data);
}

/// Reads `data` as what a CNI plugin writes, in every version that it may have been asked in.
pub fn cni_result(data: &[u8]) {
    crate::cni::fuzzing::result(data);
}
