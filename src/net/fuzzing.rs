//! Entry points for `tests/fuzz`: the parsers of netlink messages and of plugin output. Not part of
//! releases.

/// Parses `data` as responses of the kernel over netlink.
pub fn netlink(data: &[u8]) {
    crate::bridge::fuzzing::netlink(data);
}

/// Reads `data` as the output of a CNI plugin, in every version that crisp may request.
pub fn cni_result(data: &[u8]) {
    crate::cni::fuzzing::result(data);
}
