//! Doors to what reads the kernel's and plugins' bytes, for the fuzzer in `tests/fuzz`. Not part of
//! what ships.

/// Parses `data` as responses of the kernel over netlink.
pub fn netlink(data: &[u8]) {
    crate::bridge::fuzzing::netlink(data);
}

/// Reads `data` as the output of a CNI plugin, in every version that crisp may request.
pub fn cni_result(data: &[u8]) {
    crate::cni::fuzzing::result(data);
}
